//! Jobs of every dialect, and corpora of their repositories.

#[test]
fn dump() {
    let Ok(list) = std::env::var("DUMP") else { return };
    for path in list.split(':') {
        let text = std::fs::read_to_string(path).unwrap();
        println!("=== {path}: {:?}", crate::recognise(&text).map(crate::Stack::name));
        let folder = std::path::Path::new(path).parent().unwrap();
        let mut files = Vec::new();
        for name in crate::named_beside(&text) {
            if let Ok(text) = std::fs::read_to_string(folder.join(&name)) {
                for name in crate::named_beside(&text) {
                    if let Ok(text) = std::fs::read_to_string(folder.join(&name)) {
                        files.push((name, text));
                    }
                }
                files.push((name, text));
            }
        }
        let set: Vec<String> = std::env::var("SET").unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        let machine = crate::Machine { files, ..crate::Machine::of_overrides(&set) };
        let found = crate::import(crate::Stack::Trainer, &text, &machine);
        println!("{}", found.scenario);
        for one in found.findings {
            println!("{:?} {:?} {} | {}", one.severity, one.code, one.what, one.help.unwrap_or_default());
        }
    }
}
