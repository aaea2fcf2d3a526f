//! A scenario that stands in a section of another one: what it does not say itself.

use input::diagnostic::Code;
use input::reader::Reader;

/// Golden figures are of the whole file.
pub const EXPECT: (&str, &str) = ("expect", "`[expect]` of the file has the golden figures");

/// Keys of a file that its parts have from it.
const OF_THE_FILE: [&str; 3] = ["kind", "name", "seed"];

/// Refuses keys and sections of a section `side` that have no place in `whole`, each with the reason.
pub fn refuse(inside: &mut Reader<'_>, (side, whole): (&str, &str), sections: &[(&'static str, &str)]) {
    for key in OF_THE_FILE.iter().filter(|key| inside.has(key)).collect::<Vec<_>>() {
        let what = format!("`{key}` of `[{side}]` has no place in {whole}");
        inside.refuse(Code::AskedElsewhere, None, what, "write it before the first section of the file");
    }
    for (name, why) in sections {
        if inside.has(name) {
            let at = inside.section(name).at();
            inside.refuse(Code::AskedElsewhere, at, format!("`[{side}.{name}]` has no place in {whole}"), *why);
        }
    }
}
