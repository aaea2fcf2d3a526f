//! Columns of a table of numbers and of texts. Units stand in the names.

/// Cells of a column, one for each row; a cell may be empty.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    /// Numbers.
    Numbers(Vec<Option<f64>>),
    /// Texts.
    Texts(Vec<Option<String>>),
}

/// A column.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Name, with the unit.
    pub name: String,
    /// Cells.
    pub cells: Cells,
}

impl Column {
    /// A column of numbers; what is not finite is empty.
    pub fn numbers(name: impl Into<String>, cells: impl IntoIterator<Item = Option<f64>>) -> Self {
        let finite = |cell: Option<f64>| cell.filter(|number| number.is_finite());
        Self { name: name.into(), cells: Cells::Numbers(cells.into_iter().map(finite).collect()) }
    }

    /// A column of texts.
    pub fn texts<T: Into<String>>(name: impl Into<String>, cells: impl IntoIterator<Item = Option<T>>) -> Self {
        Self { name: name.into(), cells: Cells::Texts(cells.into_iter().map(|cell| cell.map(Into::into)).collect()) }
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        match &self.cells {
            Cells::Numbers(cells) => cells.len(),
            Cells::Texts(cells) => cells.len(),
        }
    }
}
