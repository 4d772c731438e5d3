//! Columns aligned by their widest cell, two spaces between them, no lines. The last column is not padded.

/// Rows of text under headings.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

impl Table {
    /// A table with these headings.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self { rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()], right: Vec::new() }
    }

    /// Aligns a column of numbers to the right.
    pub(crate) fn right(mut self, column: usize) -> Self {
        self.right.push(column);
        self
    }

    /// Adds a row; it should have a cell for each heading.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| cell.replace(char::is_control, " ")).collect());
    }

    /// The whole table, a newline after each row.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width =
            |column: usize| self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
        let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
        let mut out = String::new();
        for row in &self.rows {
            let cell = |(column, cell): (usize, &String)| match self.right.contains(&column) {
                true => format!("{cell:>width$}", width = widths[column]),
                false => format!("{cell:<width$}", width = widths[column]),
            };
            let line = row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ");
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    #[test]
    fn columns_are_aligned_and_nothing_trails() {
        let mut table = Table::new(&["NAME", "N", "IMAGE"]).right(1);
        table.row(["long-name".into(), "7".into(), "x\ny".into()]);
        table.row(["é".into(), "100".into(), String::new()]);
        assert_eq!(table.render(), "NAME         N  IMAGE\nlong-name    7  x y\né          100\n");
    }
}
