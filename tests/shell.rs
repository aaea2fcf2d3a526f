//! The shell stays a shell: `scenario/` reads, `src/` asks and writes. What is computed lies in the crates below them.

/// Lines of `src/` today, tests left out; lower it when the code gets shorter, raise it by a new verb, kind or table alone.
const LINES_MAX: usize = 6_470;
/// Products and quotients in both today: conversions of units, shares and percentages. A formula is one more.
const PRODUCTS_MAX: usize = 132;
/// What only formulas and searches have.
const FORBIDDEN: [&str; 9] = [".sqrt(", ".exp(", ".ln(", ".powf(", ".powi(", ".log2(", "while ", "loop {", "libm::"];

/// Lines of code, without tests, comments and what stands in quotation marks.
fn code(folder: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for path in super::files(&super::root().join(folder), "rs") {
        let text = std::fs::read_to_string(&path).expect("a source");
        // Blank lines between items count, as those of a file of tests do not.
        let code = super::product::product(&text);
        all.extend(code.lines().map(|line| (path.display().to_string(), unquoted(line))));
    }
    all
}

/// A line without its strings and its comment.
fn unquoted(line: &str) -> String {
    let mut out = String::new();
    let (mut is_quoted, mut is_escaped) = (false, false);
    for letter in line.chars() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            letter if !is_quoted => out.push(letter),
            _ => {}
        }
    }
    out.split("//").next().unwrap_or_default().to_owned()
}

#[test]
fn the_shell_is_short_and_gets_shorter() {
    let n = code("src").len();
    assert!(n <= LINES_MAX, "src/ has {n} lines");
    assert!(n + 200 >= LINES_MAX, "src/ has {n} lines: lower the limit to it");
}

#[test]
fn the_shell_has_no_formula() {
    let code = [code("src"), code("scenario/src")].concat();
    for (path, line) in &code {
        let found = FORBIDDEN.iter().find(|word| line.contains(**word));
        assert!(found.is_none(), "{path}: `{}` belongs into a crate below: {line}", found.unwrap_or(&""));
    }
    let n: usize = code.iter().map(|(_, line)| line.matches(" * ").count() + line.matches(" / ").count()).sum();
    assert!(n <= PRODUCTS_MAX, "shell and readers have {n} products and quotients");
    assert!(n + 20 >= PRODUCTS_MAX, "shell and readers have {n} products and quotients: lower the limit to it");
}
