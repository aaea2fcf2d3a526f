//! Sums of a shell in whole numbers: every sign of bash but those of lists, with the names that a sum assigns (bash's manual, "Shell Arithmetic").
//!
//! What is not known makes what stands on it unknown: a name that is assigned on one side of an unknown choice is unknown behind it.

use std::collections::BTreeMap;

/// Parentheses inside parentheses.
const DEPTH_MAX: usize = 32;

/// A number; `None` where only a shell knows it.
type Value = Option<i64>;

/// What a sum comes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Computed {
    /// Its value; `None` where it is none, or where a name is not known.
    pub(super) value: Value,
    /// Names that it assigns, with the last value of each.
    pub(super) assigned: BTreeMap<String, Value>,
}

/// Computes a sum. Where one that assigns cannot be read, every name in it is unknown.
pub(super) fn computed(text: &str, known: &dyn Fn(&str) -> Value) -> Computed {
    let tokens = tokens(text);
    let mut reader = Reader { tokens: &tokens, next: 0, known, depth: 0, assigned: BTreeMap::new(), side: Side::Taken };
    let value = reader.comma();
    if let Some(value) = value.filter(|_| reader.next == tokens.len()) {
        return Computed { value, assigned: reader.assigned };
    }
    let names = tokens.iter().filter(|token| is_name(token));
    let assigned = if assigns(text) { names.map(|name| (name.clone(), None)).collect() } else { BTreeMap::new() };
    Computed { value: None, assigned }
}

/// The value of a sum.
pub(super) fn sum(text: &str, known: &dyn Fn(&str) -> Value) -> Value {
    computed(text, known).value
}

/// The value of words of `expr`, whose numbers are decimal and which has no names. Its `&` and `|` are not those of a shell.
pub(super) fn of_expr(text: &str) -> Value {
    let is_read = |letter: char| letter.is_ascii_digit() || letter.is_whitespace() || "+-*/%()".contains(letter);
    let bare = |word: &str| match word.trim_start_matches('0') {
        "" if !word.is_empty() => "0".to_owned(),
        rest => rest.to_owned(),
    };
    let words: Vec<String> = text.split_whitespace().map(bare).collect();
    if text.chars().all(is_read) { sum(&words.join(" "), &|_| None) } else { None }
}

/// Whether a sum assigns anything.
pub(super) fn assigns(text: &str) -> bool {
    tokens(text).iter().any(|token| ASSIGNING.contains(&token.as_str()) || STEPS.contains(&token.as_str()))
}

/// A number as a shell writes it: decimal, `0x…`, octal behind a zero, or `BASE#…` up to base 36.
pub(super) fn literal(text: &str) -> Value {
    let text = text.trim();
    let (is_negative, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let based = digits.split_once('#').and_then(|(base, rest)| Some((base.parse().ok()?, rest)));
    let (base, digits) = match (hexadecimal, based) {
        (Some(rest), _) => (16, rest),
        (None, Some(based)) => based,
        (None, None) if digits.len() > 1 && digits.starts_with('0') => (8, &digits[1..]),
        (None, None) => (10, digits),
    };
    let number = if (2..=36).contains(&base) { i64::from_str_radix(digits, base).ok()? } else { return None };
    Some(if is_negative { -number } else { number })
}

/// Signs that change a name by one.
const STEPS: [&str; 2] = ["++", "--"];
/// Signs that assign.
const ASSIGNING: [&str; 11] = ["=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|="];
/// Signs of several letters, the longest first.
const LONG: [&str; 20] = [
    "<<=", ">>=", "**", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=", "^=", "|=",
    "++",
];
/// Signs between two sides, from those that bind least on; `&&`, `||`, choices and assignments bind less than all.
const LEVELS: [&[&str]; 8] =
    [&["|"], &["^"], &["&"], &["==", "!="], &["<=", ">=", "<", ">"], &["<<", ">>"], &["+", "-"], &["*", "/", "%"]];

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
}

/// Numbers, names and signs of several letters whole, everything else letter by letter; dollars and braces around names say nothing here.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = super::is_of_name(first);
        let of_word = |letter: char| !super::is_of_name(letter) && letter != '#';
        let end = if is_word {
            rest.find(of_word).unwrap_or(rest.len())
        } else if is_step(rest, tokens.last()) {
            2
        } else {
            let long = LONG.iter().find(|sign| **sign != "++" && rest.starts_with(**sign));
            long.map_or(first.len_utf8(), |sign| sign.len())
        };
        if !matches!(first, '$' | '{' | '}') {
            tokens.push(rest[..end].to_owned());
        }
        rest = rest[end..].trim_start();
    }
    tokens
}

/// Whether `++` or `--` begins here, behind a name or in front of one; elsewhere both letters are signs of their own.
fn is_step(rest: &str, before: Option<&String>) -> bool {
    let Some(behind) = STEPS.iter().find_map(|step| rest.strip_prefix(step)) else { return false };
    let ends_side = before.is_some_and(|token| token == ")" || token.starts_with(super::is_of_name));
    before.is_some_and(|token| is_name(token)) || !ends_side && is_name(behind.trim_start())
}

/// Whether the side of a choice that is read is the one that counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Taken,
    LeftOut,
    Unknown,
}

impl Side {
    /// That of a condition inside of it.
    const fn of(self, condition: Option<bool>) -> Self {
        match (self, condition) {
            (Self::LeftOut, _) | (_, Some(false)) => Self::LeftOut,
            (side, Some(true)) => side,
            (_, None) => Self::Unknown,
        }
    }
}

struct Reader<'a> {
    tokens: &'a [String],
    next: usize,
    known: &'a dyn Fn(&str) -> Value,
    depth: usize,
    assigned: BTreeMap<String, Value>,
    side: Side,
}

/// What each function reads: nothing where the text is no sum, else its value.
impl Reader<'_> {
    fn peek(&self) -> &str {
        self.tokens.get(self.next).map_or("", String::as_str)
    }

    /// Takes a sign, where it is one of these.
    fn sign(&mut self, signs: &[&str]) -> Option<String> {
        let sign = self.peek().to_owned();
        let is_one = signs.contains(&sign.as_str());
        self.next += usize::from(is_one);
        is_one.then_some(sign)
    }

    /// Sums with commas between them: the last one counts.
    fn comma(&mut self) -> Option<Value> {
        let mut value = self.whole()?;
        while self.sign(&[","]).is_some() {
            value = self.whole()?;
        }
        Some(value)
    }

    /// A sum, or an assignment of one.
    fn whole(&mut self) -> Option<Value> {
        let name = self.peek().to_owned();
        let sign = self.tokens.get(self.next + 1).filter(|sign| ASSIGNING.contains(&sign.as_str()));
        let Some(sign) = sign.filter(|_| is_name(&name)) else { return self.choice() };
        self.next += 2;
        let right = self.deeper(Self::whole)?;
        let value = match sign.strip_suffix('=') {
            Some("") | None => right,
            Some(own) => both(self.of_name(&name), right, |left, right| applied(left, own, right)),
        };
        self.assign(name, value);
        Some(value)
    }

    /// `condition ? one : other`.
    fn choice(&mut self) -> Option<Value> {
        let condition = self.either(&["||"])?;
        if self.sign(&["?"]).is_none() {
            return Some(condition);
        }
        let is_true = condition.map(|value| value != 0);
        let one = self.on_side(is_true, Self::comma)?;
        self.sign(&[":"])?;
        let other = self.on_side(is_true.map(|is_true| !is_true), Self::choice)?;
        Some(is_true.and_then(|is_true| if is_true { one } else { other }))
    }

    /// Sides with `||` between them, each of sides with `&&`. A side behind one that decides is not computed.
    fn either(&mut self, signs: &[&str]) -> Option<Value> {
        let (is_or, tighter): (bool, fn(&mut Self) -> Option<Value>) = if signs == ["||"] {
            (true, |reader| reader.either(&["&&"]))
        } else {
            (false, |reader| reader.sides(&LEVELS))
        };
        let mut value = tighter(self)?;
        while self.sign(signs).is_some() {
            let is_true = value.map(|value| value != 0);
            let other = self.on_side(is_true.map(|is_true| is_true != is_or), tighter)?.map(|other| other != 0);
            let decided = match (is_true, other) {
                (Some(one), _) if one == is_or => Some(is_or),
                (_, Some(other)) if other == is_or => Some(is_or),
                (Some(_), Some(_)) => Some(!is_or),
                _ => None,
            };
            value = decided.map(i64::from);
        }
        Some(value)
    }

    /// Reads what counts under a condition alone.
    fn on_side(&mut self, condition: Option<bool>, read: fn(&mut Self) -> Option<Value>) -> Option<Value> {
        let outer = self.side;
        self.side = outer.of(condition);
        let value = self.deeper(read);
        self.side = outer;
        value
    }

    /// Sides with signs of the first level between them.
    fn sides(&mut self, levels: &[&[&str]]) -> Option<Value> {
        let Some((signs, tighter)) = levels.split_first() else { return self.power() };
        let mut value = self.sides(tighter)?;
        while let Some(sign) = self.sign(signs) {
            let other = self.sides(tighter)?;
            value = both(value, other, |left, right| applied(left, &sign, right));
        }
        Some(value)
    }

    /// Powers, from the right.
    fn power(&mut self) -> Option<Value> {
        let value = self.factor()?;
        if self.sign(&["**"]).is_none() {
            return Some(value);
        }
        let exponent = self.deeper(Self::power)?;
        Some(both(value, exponent, |value, exponent| value.checked_pow(u32::try_from(exponent).ok()?)))
    }

    /// A number, a name, a sum in parentheses, or one of them behind signs of its own.
    fn factor(&mut self) -> Option<Value> {
        if let Some(step) = self.sign(&STEPS) {
            let name = self.name()?;
            let value = both(self.of_name(&name), Some(1), |value, one| applied(value, &step[..1], one));
            self.assign(name, value);
            return Some(value);
        }
        if let Some(sign) = self.sign(&["-", "+", "!", "~"]) {
            let value = self.deeper(Self::factor)?;
            return Some(value.and_then(|value| signed(&sign, value)));
        }
        if self.sign(&["("]).is_some() {
            let value = self.deeper(Self::comma)?;
            return self.sign(&[")"]).map(|_| value);
        }
        if self.peek() == super::UNKNOWN.to_string() {
            self.next += 1;
            return Some(None);
        }
        if !is_name(self.peek()) {
            let value = literal(self.peek())?;
            self.next += 1;
            return Some(Some(value));
        }
        let name = self.name()?;
        let value = self.of_name(&name);
        if let Some(step) = self.sign(&STEPS) {
            self.assign(name, both(value, Some(1), |value, one| applied(value, &step[..1], one)));
        }
        Some(value)
    }

    /// Takes a name.
    fn name(&mut self) -> Option<String> {
        let name = self.peek().to_owned();
        self.next += 1;
        is_name(&name).then_some(name)
    }

    fn of_name(&self, name: &str) -> Value {
        self.assigned.get(name).copied().unwrap_or_else(|| (self.known)(name))
    }

    fn assign(&mut self, name: String, value: Value) {
        match self.side {
            Side::Taken => self.assigned.insert(name, value),
            Side::Unknown => self.assigned.insert(name, None),
            Side::LeftOut => None,
        };
    }

    /// What lies inside of something else, unless that is too deep.
    fn deeper(&mut self, read: fn(&mut Self) -> Option<Value>) -> Option<Value> {
        self.depth += 1;
        let value = if self.depth > DEPTH_MAX { None } else { read(self) }?;
        self.depth -= 1;
        Some(value)
    }
}

/// What two numbers give, where both are known.
fn both(left: Value, right: Value, of: impl Fn(i64, i64) -> Value) -> Value {
    left.zip(right).and_then(|(left, right)| of(left, right))
}

/// What a sign in front makes of a number.
fn signed(sign: &str, value: i64) -> Value {
    match sign {
        "-" => value.checked_neg(),
        "!" => Some(i64::from(value == 0)),
        "~" => Some(!value),
        _ => Some(value),
    }
}

/// What a sign makes of two numbers.
fn applied(left: i64, sign: &str, right: i64) -> Value {
    match sign {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "/" => left.checked_div(right),
        "%" => left.checked_rem(right),
        "<<" => left.checked_mul(1_i64.checked_shl(shift(right)?)?),
        ">>" => Some(left >> shift(right)?),
        "&" => Some(left & right),
        "^" => Some(left ^ right),
        "|" => Some(left | right),
        _ => Some(i64::from(compares(left, sign, right))),
    }
}

/// Whether a comparison holds.
pub(super) const fn compares(left: i64, sign: &str, right: i64) -> bool {
    match sign.as_bytes() {
        b">=" => left >= right,
        b"<=" => left <= right,
        b"==" => left == right,
        b"!=" => left != right,
        b">" => left > right,
        _ => left < right,
    }
}

/// Bits by which a number is moved.
fn shift(bits: i64) -> Option<u32> {
    u32::try_from(bits).ok().filter(|bits| *bits < 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_a_shell() {
        let known = |name: &str| (name == "N").then_some(3);
        for (text, expected) in [
            ("2 + 3 * 4", Some(14)),
            ("(2+3)*$N", Some(15)),
            ("${N} / 2 - 7 % 4", Some(-2)),
            ("1 << 10", Some(1024)),
            ("4096 >> 2 + 1", Some(512)),
            ("2 ** 3 ** 2", Some(512)),
            ("-2 ** 2 - -N", Some(7)),
            ("- (1 + +2) * 2", Some(-6)),
            ("2 ** -1", None),
            ("1 << 64", None),
            ("1 < < 2", None),
            ("N N", None),
            ("M", None),
            ("1 +", None),
            ("1 / 0", None),
            ("9223372036854775807 * 2", None),
            ("010 + 0x1F", Some(39)),
            ("2#101 + 36#z", Some(40)),
            ("08", None),
            ("N > 2 && M", None),
            ("N > 3 && M", Some(0)),
            ("N == 3 ? 7 : M", Some(7)),
            ("!N | ~0 & 6 ^ 1", Some(7)),
            ("1, 2", Some(2)),
            ("N - --N", Some(1)),
        ] {
            assert_eq!(sum(text, &known), expected, "{text}");
        }
        for sign in ["(", "-", "2**", "N=", "1?", "1&&", "!"] {
            assert_eq!(sum(&sign.repeat(100_000), &known), None);
        }
    }

    #[test]
    fn names_that_a_sum_assigns_are_those_of_a_shell() {
        let known = |name: &str| (name == "N").then_some(3);
        for (text, value, assigned) in [
            ("N *= 2", Some(6), &[("N", Some(6))][..]),
            ("N++ + N", Some(7), &[("N", Some(4))]),
            ("--N", Some(2), &[("N", Some(2))]),
            ("A = B = N - 1", Some(2), &[("A", Some(2)), ("B", Some(2))]),
            ("A = 2, A <<= N", Some(16), &[("A", Some(16))]),
            ("N > 3 && (A = 1)", Some(0), &[]),
            ("N > 2 ? (A = 1) : (B = 1)", Some(1), &[("A", Some(1))]),
            // A side that only a shell takes leaves its names open.
            ("M ? (N = 1) : (N = 2)", None, &[("N", None)]),
            ("N = M", None, &[("N", None)]),
            ("L[1] = N", None, &[("L", None), ("N", None)]),
            ("N == 3", Some(1), &[]),
        ] {
            let assigned = assigned.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            assert_eq!(computed(text, &known), Computed { value, assigned }, "{text}");
        }
        for (text, expected) in
            [("010 + 1", Some(11)), ("2 = 2", None), ("N + 1", None), ("6 | 1", None), ("0", Some(0))]
        {
            assert_eq!(of_expr(text), expected, "{text}");
        }
    }
}
