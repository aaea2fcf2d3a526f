//! Sums of a shell in whole numbers: `+ - * / %`, parentheses and names.

/// Parentheses inside parentheses.
const DEPTH_MAX: usize = 32;

/// The value of a sum; `None` where it is none, or where a name is not known.
pub(super) fn sum(text: &str, known: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    let tokens = tokens(text);
    let mut reader = Reader { tokens: &tokens, next: 0, known, depth: 0 };
    let value = reader.terms()?;
    (reader.next == tokens.len()).then_some(value)
}

/// Numbers and names whole, everything else letter by letter; dollars and braces around names say nothing here.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut is_word = false;
    for letter in text.chars() {
        let belongs = super::is_of_name(letter);
        match tokens.last_mut() {
            Some(last) if belongs && is_word => last.push(letter),
            _ if letter.is_whitespace() || matches!(letter, '$' | '{' | '}') => {}
            _ => tokens.push(letter.to_string()),
        }
        is_word = belongs;
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

    fn terms(&mut self) -> Option<i64> {
        let mut value = self.factors()?;
        loop {
            let sign = self.peek().to_owned();
            if sign != "+" && sign != "-" {
                return Some(value);
            }
            self.next += 1;
            let other = self.factors()?;
            value = if sign == "+" { value.checked_add(other)? } else { value.checked_sub(other)? };
        }
    }

    fn factors(&mut self) -> Option<i64> {
        let mut value = self.factor()?;
        loop {
            let sign = self.peek().to_owned();
            if !matches!(sign.as_str(), "*" | "/" | "%") {
                return Some(value);
            }
            self.next += 1;
            let other = self.factor()?;
            value = match sign.as_str() {
                "*" => value.checked_mul(other)?,
                "/" => value.checked_div(other)?,
                _ => value.checked_rem(other)?,
            };
        }
    }

    fn factor(&mut self) -> Option<i64> {
        let token = self.peek().to_owned();
        self.next += 1;
        if token != "(" {
            return token.parse().ok().or_else(|| (self.known)(&token));
        }
        self.depth += 1;
        let value = if self.depth > DEPTH_MAX { None } else { self.terms() }?;
        self.depth -= 1;
        let is_closed = self.peek() == ")";
        self.next += 1;
        is_closed.then_some(value)
    }
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
            ("M", None),
            ("1 +", None),
            ("1 / 0", None),
            ("9223372036854775807 * 2", None),
        ] {
            assert_eq!(sum(text, &known), expected, "{text}");
        }
        assert_eq!(sum(&"(".repeat(100_000), &known), None);
    }
}
