//! Reads sizes that people write: sums, differences and products of whole numbers and names of symbols, with parentheses.

use super::symbolic::{Expression, Symbols};

/// Highest total power that a size may have.
const DEGREE_MAX: u32 = 6;
/// Largest number in a size.
const NUMBER_MAX: i128 = 1_000_000_000_000;
/// Deepest nesting of parentheses.
const DEPTH_MAX: usize = 32;

/// Why a text is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum NoSize {
    /// Powers are too high.
    #[error("powers add up to {0}, allowed are {DEGREE_MAX}")]
    Degree(u32),
    /// A letter stands where none may.
    #[error("`{0}` is not expected")]
    Letter(char),
    /// Parentheses are too deep.
    #[error("parentheses are nested too deeply")]
    Depth,
    /// A parenthesis is not closed.
    #[error("`)` is missing")]
    Open,
    /// An operand is missing.
    #[error("a number or a symbol is expected")]
    Nothing,
    /// A number is not whole, or too large.
    #[error("`{0}` is not a whole number up to {NUMBER_MAX}")]
    Number(String),
    /// A name is no symbol.
    #[error("no symbol `{word}`; there are {known}")]
    Symbol { word: String, known: String },
}

/// A size as text, for example `2*batch*(sequence + 1)`.
///
/// # Errors
/// What is wrong with the text.
pub fn expression(text: &str, symbols: &Symbols) -> Result<Expression, NoSize> {
    let mut reader = Text { rest: text, symbols, depth: 0 };
    let found = reader.sum()?;
    reader.skip();
    match reader.rest.chars().next() {
        None if found.degree() <= DEGREE_MAX => Ok(found),
        None => Err(NoSize::Degree(found.degree())),
        Some(letter) => Err(NoSize::Letter(letter)),
    }
}

struct Text<'a> {
    rest: &'a str,
    symbols: &'a Symbols,
    depth: usize,
}

impl Text<'_> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Whether this sign came next; it is taken.
    fn took(&mut self, sign: char) -> bool {
        self.skip();
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn sum(&mut self) -> Result<Expression, NoSize> {
        let mut sum = self.product()?;
        loop {
            if self.took('+') {
                sum = sum.plus(&self.product()?);
            } else if self.took('-') {
                sum = sum.minus(&self.product()?);
            } else {
                return Ok(sum);
            }
        }
    }

    fn product(&mut self) -> Result<Expression, NoSize> {
        let mut product = self.factor()?;
        while self.took('*') {
            product = product.product(&self.factor()?);
            if product.degree() > DEGREE_MAX {
                return Err(NoSize::Degree(product.degree()));
            }
        }
        Ok(product)
    }

    fn factor(&mut self) -> Result<Expression, NoSize> {
        if self.took('(') {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return Err(NoSize::Depth);
            }
            let inner = self.sum()?;
            self.depth -= 1;
            return if self.took(')') { Ok(inner) } else { Err(NoSize::Open) };
        }
        self.skip();
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let end = self.rest.find(|letter| !is_part(letter)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        if word.is_empty() {
            return Err(NoSize::Nothing);
        }
        if word.starts_with(|letter: char| letter.is_ascii_digit()) {
            let number = word.replace('_', "").parse::<i128>().ok().filter(|number| *number <= NUMBER_MAX);
            return number.map(Expression::constant).ok_or_else(|| NoSize::Number(word.to_owned()));
        }
        let known = || self.symbols.names().collect::<Vec<_>>().join(", ");
        self.symbols
            .named(word)
            .map(Expression::symbol)
            .ok_or_else(|| NoSize::Symbol { word: word.to_owned(), known: known() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::symbolic::Symbol;
    use super::*;

    #[test]
    fn sums_products_and_parentheses_mean_what_they_do_in_school() {
        let mut symbols = Symbols::default();
        symbols.add(Symbol::unbounded("batch"));
        symbols.add(Symbol::unbounded("sequence"));
        let value = |text: &str| expression(text, &symbols).map(|found| found.value(&|id| [3, 5][id.0 as usize]));
        assert_eq!(value("2*batch*(sequence + 1) - 4"), Ok(32));
        assert_eq!(value("1_000"), Ok(1000));
        assert!(value("2*heads").expect_err("unknown").to_string().contains("batch, sequence"));
        for wrong in ["", "2 +", "(2", "2)", "2 batch", "2**3", "9999999999999999999"] {
            assert!(value(wrong).is_err(), "{wrong}");
        }
    }
}
