fn main() {
    let a: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&a[1]).unwrap();
    let m = stacks::Machine::of_overrides(&a[2..].to_vec());
    match stacks::recognise(&text) {
        Some(s) => {
            let i = stacks::import(s, &text, &m);
            for f in i.findings {
                eprintln!("{:?} {:?} | {} | {}", f.severity, f.code, f.what, f.help.unwrap_or_default());
            }
            println!("{}", i.scenario);
        }
        None => eprintln!("not recognised"),
    }
}
