//! Sizes that are not known before run time: symbols for dimensions, polynomials over them, and a comparison that may stay open.
//!
//! BladeDISC++ (arXiv:2412.16985, section 3.1): one canonical symbol per distinct run-time size. Symbols that follow from others (a reshape
//! gives S1 = 12 S0) are substituted, two sizes are subtracted, and the difference is judged by the signs of its coefficients. Bounds of
//! symbols, where they are known, decide more; likely values decide where nothing else does, and then nothing is proven.
//! Invariant: a canonical expression holds no term with coefficient 0 and no symbol that follows from others.

use std::collections::{BTreeMap, BTreeSet};

/// Identity of a symbol: its position in `Symbols`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SymbolId(pub u32);

/// A dimension that is known at run time only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Symbol {
    /// Name for people.
    pub name: String,
    /// Least value; a dimension has at least 1.
    pub low: u64,
    /// Largest value, where one is known.
    pub high: Option<u64>,
    /// A value that is likely, where nothing can be proven.
    pub likely: Option<u64>,
}

impl Symbol {
    /// A positive dimension of which nothing else is known.
    pub fn unbounded(name: &str) -> Self {
        Self { name: name.to_owned(), low: 1, high: None, likely: None }
    }

    /// A dimension that is known.
    pub fn known(name: &str, value: u64) -> Self {
        Self { name: name.to_owned(), low: value, high: Some(value), likely: Some(value) }
    }
}

/// Product of powers of symbols, without exponents of 0; the empty product is 1.
type Monomial = BTreeMap<SymbolId, u32>;

/// Polynomial over symbols with whole coefficients, for example the bytes of a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expression {
    terms: BTreeMap<Monomial, i128>,
}

impl Expression {
    /// A number.
    pub fn constant(value: i128) -> Self {
        Self { terms: if value == 0 { BTreeMap::new() } else { [(Monomial::new(), value)].into() } }
    }

    /// A symbol by itself.
    pub fn symbol(id: SymbolId) -> Self {
        Self { terms: [([(id, 1)].into(), 1)].into() }
    }

    /// Sum.
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        for (monomial, coefficient) in &other.terms {
            let term = sum.terms.entry(monomial.clone()).or_insert(0);
            *term = term.saturating_add(*coefficient);
        }
        sum.terms.retain(|_, coefficient| *coefficient != 0);
        sum
    }

    /// Product with a number.
    pub fn times(&self, factor: i128) -> Self {
        self.product(&Self::constant(factor))
    }

    /// Difference.
    pub fn minus(&self, other: &Self) -> Self {
        self.plus(&other.times(-1))
    }

    /// Product.
    pub fn product(&self, other: &Self) -> Self {
        let mut product = Self::default();
        for (left, a) in &self.terms {
            for (right, b) in &other.terms {
                let mut monomial = left.clone();
                right.iter().for_each(|(symbol, power)| *monomial.entry(*symbol).or_insert(0) += power);
                product = product.plus(&Self { terms: [(monomial, a.saturating_mul(*b))].into() });
            }
        }
        product
    }

    /// The number that it is, where no symbol is in it.
    pub fn as_constant(&self) -> Option<i128> {
        match self.terms.len() {
            0 => Some(0),
            1 => self.terms.get(&Monomial::new()).copied(),
            _ => None,
        }
    }

    /// Symbols in it.
    pub fn symbols(&self) -> BTreeSet<SymbolId> {
        self.terms.keys().flat_map(|monomial| monomial.keys().copied()).collect()
    }

    /// Highest total power of a term.
    pub fn degree(&self) -> u32 {
        self.terms.keys().map(|monomial| monomial.values().sum()).max().unwrap_or(0)
    }

    /// Its value where `of` gives every symbol's.
    pub fn value(&self, of: &dyn Fn(SymbolId) -> u64) -> i128 {
        let power = |(symbol, power): (&SymbolId, &u32)| i128::from(of(*symbol)).saturating_pow(*power);
        let term = |(monomial, coefficient): (&Monomial, &i128)| {
            monomial.iter().map(power).fold(*coefficient, i128::saturating_mul)
        };
        self.terms.iter().map(term).fold(0, i128::saturating_add)
    }

    /// Least and largest value over a box of symbols, each term by itself; `None` where there is no bound.
    fn range(&self, symbols: &Symbols) -> (Option<i128>, Option<i128>) {
        let (mut low, mut high) = (Some(0_i128), Some(0_i128));
        for (monomial, &coefficient) in &self.terms {
            let (mut least, mut most) = (1_i128, Some(1_i128));
            for (symbol, power) in monomial {
                let symbol = symbols.get(*symbol);
                least = least.saturating_mul(i128::from(symbol.low).saturating_pow(*power));
                let top = symbol.high.map(|high| i128::from(high).saturating_pow(*power));
                most = most.zip(top).map(|(most, top)| most.saturating_mul(top));
            }
            let (at_least, at_most) = (Some(least), most);
            let (down, up) = if coefficient > 0 { (at_least, at_most) } else { (at_most, at_least) };
            let add = |sum: Option<i128>, value: Option<i128>| {
                sum.zip(value).map(|(sum, value)| sum.saturating_add(value.saturating_mul(coefficient)))
            };
            (low, high) = (add(low, down), add(high, up));
        }
        (low, high)
    }

    /// It without the symbols that all of its terms have in common: their product is not negative, so the sign stays.
    fn reduced(&self) -> Self {
        let Some(first) = self.terms.keys().next() else { return self.clone() };
        let least = |symbol: &SymbolId| {
            self.terms.keys().map(|monomial| monomial.get(symbol).copied().unwrap_or(0)).min().unwrap_or(0)
        };
        let shared: Monomial =
            first.keys().map(|symbol| (*symbol, least(symbol))).filter(|(_, power)| *power > 0).collect();
        let without = |monomial: &Monomial| -> Monomial {
            let left = |(symbol, power): (&SymbolId, &u32)| (*symbol, power - shared.get(symbol).copied().unwrap_or(0));
            monomial.iter().map(left).filter(|(_, power)| *power > 0).collect()
        };
        Self { terms: self.terms.iter().map(|(monomial, coefficient)| (without(monomial), *coefficient)).collect() }
    }
}

/// How two sizes compare, whatever the symbols turn out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Never more.
    AtMost,
    /// Always the same.
    Equal,
    /// Never less.
    AtLeast,
    /// Not decided.
    Unknown,
}

/// Why a symbol cannot stand for an expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Circular {
    /// It stands for another one.
    #[error("`{0}` follows from other symbols already")]
    Twice(String),
    /// The expression contains it.
    #[error("`{0}` would follow from itself")]
    Itself(String),
}

/// Symbols of a graph, and what is known of them.
#[derive(Clone, Debug, Default)]
pub struct Symbols {
    symbols: Vec<Symbol>,
    /// Symbols that follow from others, each with a canonical expression.
    derived: BTreeMap<SymbolId, Expression>,
}

impl Symbols {
    /// Adds a symbol.
    pub fn add(&mut self, symbol: Symbol) -> SymbolId {
        self.symbols.push(symbol);
        SymbolId(u32::try_from(self.symbols.len() - 1).expect("few symbols"))
    }

    /// A symbol.
    ///
    /// # Panics
    /// When it is of another graph.
    pub fn get(&self, id: SymbolId) -> &Symbol {
        &self.symbols[id.0 as usize]
    }

    /// Says anew what is known of a symbol.
    pub fn set(&mut self, id: SymbolId, symbol: Symbol) {
        self.symbols[id.0 as usize] = symbol;
    }

    /// A symbol by name.
    pub fn named(&self, name: &str) -> Option<SymbolId> {
        let at = self.symbols.iter().position(|symbol| symbol.name == name)?;
        Some(SymbolId(u32::try_from(at).expect("few symbols")))
    }

    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.symbols.iter().map(|symbol| symbol.name.as_str())
    }

    /// Merges: from now on a symbol stands for an expression. Bounds of the symbol itself no longer count.
    ///
    /// # Errors
    /// When the symbol follows from others already or the expression contains it.
    pub fn equate(&mut self, id: SymbolId, expression: &Expression) -> Result<(), Circular> {
        let expression = self.canonical(expression);
        let name = &self.get(id).name;
        if self.derived.contains_key(&id) {
            return Err(Circular::Twice(name.clone()));
        }
        if expression.symbols().contains(&id) {
            return Err(Circular::Itself(name.clone()));
        }
        self.derived.insert(id, expression);
        let again: Vec<(SymbolId, Expression)> =
            self.derived.iter().map(|(known, old)| (*known, self.canonical(old))).collect();
        self.derived.extend(again);
        Ok(())
    }

    /// States that one symbol is never less than another: it becomes that one and a rest that may be 0.
    ///
    /// # Errors
    /// As `equate`.
    pub fn at_least(&mut self, larger: SymbolId, smaller: SymbolId) -> Result<(), Circular> {
        let name = format!("{} - {}", self.get(larger).name, self.get(smaller).name);
        let rest = self.add(Symbol { low: 0, ..Symbol::unbounded(&name) });
        self.equate(larger, &Expression::symbol(smaller).plus(&Expression::symbol(rest)))
    }

    /// The expression over symbols that follow from no other.
    pub fn canonical(&self, expression: &Expression) -> Expression {
        if expression.symbols().iter().all(|symbol| !self.derived.contains_key(symbol)) {
            return expression.clone();
        }
        let mut sum = Expression::default();
        for (monomial, coefficient) in &expression.terms {
            let mut term = Expression::constant(*coefficient);
            for (symbol, power) in monomial {
                let plain = Expression::symbol(*symbol);
                let factor = self.derived.get(symbol).unwrap_or(&plain);
                term = (0..*power).fold(term, |term, _| term.product(factor));
            }
            sum = sum.plus(&term);
        }
        sum
    }

    /// Compares two expressions for every value that the symbols may have.
    pub fn compare(&self, left: &Expression, right: &Expression) -> Comparison {
        let difference = self.canonical(&left.minus(right));
        if difference.as_constant() == Some(0) {
            return Comparison::Equal;
        }
        let difference = difference.reduced();
        match difference.range(self) {
            (Some(0), Some(0)) => Comparison::Equal,
            (Some(low), _) if low >= 0 => Comparison::AtLeast,
            (_, Some(high)) if high <= 0 => Comparison::AtMost,
            _ => Comparison::Unknown,
        }
    }

    /// As `compare`, and where that is not decided, at the likely values of the symbols if all have one.
    pub fn compare_likely(&self, left: &Expression, right: &Expression) -> Comparison {
        let certain = self.compare(left, right);
        let difference = self.canonical(&left.minus(right));
        let is_known = difference.symbols().iter().all(|id| self.get(*id).likely.is_some());
        if certain != Comparison::Unknown || !is_known {
            return certain;
        }
        match difference.value(&|id| self.get(id).likely.unwrap_or(1)).signum() {
            -1 => Comparison::AtMost,
            0 => Comparison::Equal,
            _ => Comparison::AtLeast,
        }
    }

    /// Bytes, or another count, that a canonical expression has where `of` gives the symbols' values.
    pub fn count(&self, expression: &Expression, of: &dyn Fn(SymbolId) -> u64) -> u64 {
        let value = self.canonical(expression).value(of).max(0);
        // Sums of a few such counts stay below 2^63.
        u64::try_from(value).unwrap_or(u64::MAX).min(1 << 56)
    }

    /// The expression in words, for example `2*batch*sequence + 4`.
    pub fn words(&self, expression: &Expression) -> String {
        let term = |(monomial, coefficient): (&Monomial, &i128)| {
            let factors = monomial.iter().flat_map(|(id, power)| {
                std::iter::repeat_n(self.get(*id).name.clone(), usize::try_from(*power).expect("small powers"))
            });
            let number = (*coefficient != 1 || monomial.is_empty()).then(|| coefficient.to_string());
            number.into_iter().chain(factors).collect::<Vec<_>>().join("*")
        };
        let terms: Vec<String> = expression.terms.iter().rev().map(term).collect();
        if terms.is_empty() { "0".to_owned() } else { terms.join(" + ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S0 and S1, of which nothing is known.
    fn two() -> (Symbols, Expression, Expression, [SymbolId; 2]) {
        let mut symbols = Symbols::default();
        let ids = [symbols.add(Symbol::unbounded("S0")), symbols.add(Symbol::unbounded("S1"))];
        (symbols, Expression::symbol(ids[0]), Expression::symbol(ids[1]), ids)
    }

    #[test]
    fn equal_powers_compare_by_their_coefficients() {
        let (symbols, s0, s1, _) = two();
        let area = s0.product(&s1);
        assert_eq!(symbols.compare(&area.times(11), &area.times(12)), Comparison::AtMost);
        assert_eq!(symbols.compare(&area.times(12), &area.times(11)), Comparison::AtLeast);
        assert_eq!(symbols.compare(&area, &area), Comparison::Equal);
    }

    #[test]
    fn a_square_and_a_product_compare_only_when_the_sides_do() {
        let (mut symbols, s0, s1, ids) = two();
        let (square, area) = (s0.product(&s0), s0.product(&s1));
        assert_eq!(symbols.compare(&square, &area), Comparison::Unknown);
        symbols.at_least(ids[1], ids[0]).expect("new");
        assert_eq!(symbols.compare(&square, &area), Comparison::AtMost);
    }

    #[test]
    fn a_reshape_makes_sizes_equal() {
        // S1 = 12 S0 turns S0 S1 into 12 S0 S0.
        let (mut symbols, s0, s1, ids) = two();
        symbols.equate(ids[1], &s0.times(12)).expect("new");
        let (left, right) = (s0.product(&s0).times(12), s0.product(&s1));
        assert_eq!(symbols.compare(&left, &right), Comparison::Equal);
        assert_eq!(symbols.compare(&left.times(11), &right.times(12)), Comparison::AtMost);
        assert!(symbols.equate(ids[1], &s0).is_err());
        assert!(symbols.equate(ids[0], &s1).is_err(), "it would follow from itself");
    }

    #[test]
    fn bounds_decide_what_signs_leave_open_and_likely_values_the_rest() {
        let mut symbols = Symbols::default();
        let id = symbols.add(Symbol { low: 100, high: Some(3000), likely: Some(1000), name: "S".to_owned() });
        let s = Expression::symbol(id);
        // 4 S S against 100 S: S is at least 100. Against 2000 S it is open, and likely 4000 to 2000.
        assert_eq!(symbols.compare(&s.product(&s).times(4), &s.times(100)), Comparison::AtLeast);
        assert_eq!(symbols.compare(&s.product(&s).times(4), &s.times(2000)), Comparison::Unknown);
        assert_eq!(symbols.compare_likely(&s.product(&s).times(4), &s.times(2000)), Comparison::AtLeast);
    }

    /// What is said to hold for every binding holds for all small ones.
    #[test]
    fn a_decided_comparison_holds_at_every_binding() {
        let mut draws = engine::random::stream(5, "symbolic");
        for _ in 0..500 {
            let mut symbols = Symbols::default();
            let bounds = [1 + draws.below(3), 2 + draws.below(3)];
            let high = [bounds[0] + draws.below(4), bounds[1] + draws.below(4)];
            for at in 0..2 {
                let known = (draws.below(2) == 0).then_some(high[at]);
                symbols.add(Symbol { low: bounds[at], high: known, likely: None, name: format!("S{at}") });
            }
            let mut polynomial = || {
                let mut sum = Expression::default();
                for powers in [[0, 0], [1, 0], [0, 1], [1, 1], [2, 0]] {
                    let monomial: Monomial = (0..).map(SymbolId).zip(powers).filter(|(_, power)| *power > 0).collect();
                    let term = Expression { terms: [(monomial, i128::from(draws.below(7)))].into() };
                    sum = sum.plus(&term);
                }
                sum
            };
            let (left, right) = (polynomial(), polynomial());
            let verdict = symbols.compare(&left, &right);
            for s0 in bounds[0]..=high[0] {
                for s1 in bounds[1]..=high[1] {
                    let of = |id: SymbolId| if id.0 == 0 { s0 } else { s1 };
                    let difference = left.value(&of) - right.value(&of);
                    match verdict {
                        Comparison::AtMost => assert!(difference <= 0),
                        Comparison::AtLeast => assert!(difference >= 0),
                        Comparison::Equal => assert_eq!(difference, 0),
                        Comparison::Unknown => {}
                    }
                }
            }
        }
    }
}
