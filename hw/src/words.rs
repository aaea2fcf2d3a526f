//! Enums whose variants stand for words, in scenarios, results and texts.

/// Makes an enum of plain words: the enum, every variant in order (`ALL`), the same with their words (`WORDS`), what says a word, and what
/// a word says (`named`).
///
/// `enum Bound: word { Device = "device", … }` says it by `bound.word()`. With `Cause: key, name { Bubble = ("lost_bubble_s", "bubbles"), … }`
/// there are two texts for every variant. Variants of `enum Reason { .. }: name, about { … }` may have fields, so there is no `ALL` of them.
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident: $say:ident { $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $crate::words!(@plain $(#[$meta])* $vis $name $($(#[$doc])* $variant = $word),+);
        $crate::words!(@say $vis $name $say $($variant = $word),+);
    };
    ($(#[$meta:meta])* $vis:vis enum $name:ident: $say:ident, $also:ident {
        $($(#[$doc:meta])* $variant:ident = ($word:literal, $more:literal)),+ $(,)?
    }) => {
        $crate::words!(@plain $(#[$meta])* $vis $name $($(#[$doc])* $variant = $word),+);
        $crate::words!(@say $vis $name $say $($variant = $word),+);
        $crate::words!(@say $vis $name $also $($variant = $more),+);
    };
    ($(#[$meta:meta])* $vis:vis enum $name:ident { .. }: $say:ident, $also:ident {
        $($(#[$doc:meta])* $variant:ident $({ $($field:tt)+ })? = ($word:literal, $more:literal)),+ $(,)?
    }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$doc])* $variant $({ $($field)+ })?),+
        }
        $crate::words!(@tell $vis $name $say $($variant = $word),+);
        $crate::words!(@tell $vis $name $also $($variant = $more),+);
    };
    (@plain $(#[$meta:meta])* $vis:vis $name:ident $($(#[$doc:meta])* $variant:ident = $word:literal),+) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$doc])* $variant),+
        }

        #[allow(dead_code, reason = "few enums need all three")]
        impl $name {
            /// Every one, in order.
            $vis const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];
            /// Every one with its word, in order.
            $vis const WORDS: [(&'static str, Self); [$($word),+].len()] = [$(($word, Self::$variant)),+];

            /// The one of a word.
            $vis fn named(word: &str) -> Option<Self> {
                Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, found)| *found)
            }
        }
    };
    (@say $vis:vis $name:ident $say:ident $($variant:ident = $word:literal),+) => {
        impl $name {
            /// What stands for it in words.
            $vis const fn $say(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }
    };
    (@tell $vis:vis $name:ident $say:ident $($variant:ident = $word:literal),+) => {
        impl $name {
            /// What stands for it in words.
            $vis const fn $say(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $word),+
                }
            }
        }
    };
}
