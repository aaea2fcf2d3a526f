//! One helper over good_lp and HiGHS.
