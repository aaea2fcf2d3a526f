//! Sums of a shell in whole numbers: `+ - * / % ** << >>`, signs in front, parentheses and names.

/// Parentheses inside parentheses.
const DEPTH_MAX: usize = 32;

/// The value of a sum; `None` where it is none, or where a name is not known.
pub(super) fn sum(text: &str, known: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    let tokens = tokens(text);
    let mut reader = Reader { tokens: &tokens, next: 0, known, depth: 0 };
    let value = reader.whole()?;
    (reader.next == tokens.len()).then_some(value)
}

/// Signs of two letters.
const LONG: [&str; 3] = ["**", "<<", ">>"];
/// Signs between two sides, from those that bind least on.
const LEVELS: [&[&str]; 3] = [&["<<", ">>"], &["+", "-"], &["*", "/", "%"]];

/// Numbers, names and signs of two letters whole, everything else letter by letter; dollars and braces around names say nothing here.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    // Whether the last token may go on.
    let mut is_open = false;
    let mut is_word = false;
    for letter in text.chars() {
        let belongs = super::is_of_name(letter);
        let last = tokens.last_mut().filter(|_| is_open);
        match last {
            Some(last) if belongs && is_word => last.push(letter),
            Some(last) if LONG.iter().any(|sign| *sign == format!("{last}{letter}")) => {
                last.push(letter);
                is_open = false;
                continue;
            }
            _ if letter.is_whitespace() || matches!(letter, '$' | '{' | '}') => {
                is_open = false;
                continue;
            }
            _ => tokens.push(letter.to_string()),
        }
        (is_open, is_word) = (true, belongs);
    }
    tokens
}

struct Reader<'a> {
    tokens: &'a [String],
    next: usize,
    known: &'a dyn Fn(&str) -> Option<i64>,
    depth: usize,
}

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

    /// A whole sum.
    fn whole(&mut self) -> Option<i64> {
        self.sides(&LEVELS)
    }

    /// Sides with signs of the first level between them.
    fn sides(&mut self, levels: &[&[&str]]) -> Option<i64> {
        let Some((signs, tighter)) = levels.split_first() else { return self.power() };
        let mut value = self.sides(tighter)?;
        while let Some(sign) = self.sign(signs) {
            let other = self.sides(tighter)?;
            value = applied(value, &sign, other)?;
        }
        Some(value)
    }

    /// Powers, from the right.
    fn power(&mut self) -> Option<i64> {
        let value = self.factor()?;
        if self.sign(&["**"]).is_none() {
            return Some(value);
        }
        let exponent = self.deeper(Self::power)?;
        value.checked_pow(u32::try_from(exponent).ok()?)
    }

    /// A number, a name, a sum in parentheses, or one of them behind signs of its own.
    fn factor(&mut self) -> Option<i64> {
        if let Some(sign) = self.sign(&["-", "+"]) {
            let value = self.deeper(Self::factor)?;
            return if sign == "-" { value.checked_neg() } else { Some(value) };
        }
        let token = self.peek().to_owned();
        self.next += 1;
        if token != "(" {
            return token.parse().ok().or_else(|| (self.known)(&token));
        }
        let value = self.deeper(Self::whole)?;
        self.sign(&[")"]).map(|_| value)
    }

    /// What lies inside of something else, unless that is too deep.
    fn deeper(&mut self, read: fn(&mut Self) -> Option<i64>) -> Option<i64> {
        self.depth += 1;
        let value = if self.depth > DEPTH_MAX { None } else { read(self) }?;
        self.depth -= 1;
        Some(value)
    }
}

/// What a sign makes of two numbers.
fn applied(left: i64, sign: &str, right: i64) -> Option<i64> {
    match sign {
        "+" => left.checked_add(right),
        "-" => left.checked_sub(right),
        "*" => left.checked_mul(right),
        "/" => left.checked_div(right),
        "%" => left.checked_rem(right),
        "<<" => left.checked_mul(1_i64.checked_shl(shift(right)?)?),
        _ => Some(left >> shift(right)?),
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
        ] {
            assert_eq!(sum(text, &known), expected, "{text}");
        }
        for sign in ["(", "-", "2**"] {
            assert_eq!(sum(&sign.repeat(100_000), &known), None);
        }
    }
}
