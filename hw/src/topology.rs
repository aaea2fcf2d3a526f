//! Graph of links (see issue).
