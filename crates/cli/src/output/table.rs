//! Tables: columns as wide as their widest cell, two spaces apart, without lines.

/// Rows of text under headings.
pub(crate) struct TextTable {
    rows: Vec<Vec<String>>,
    right_aligned: Vec<usize>,
}

impl TextTable {
    /// Creates a table with these headings.
    pub(crate) fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![
                headings
                    .iter()
                    .map(|heading| (*heading).to_owned())
                    .collect(),
            ],
            right_aligned: Vec::new(),
        }
    }

    /// Aligns a column of numbers to the right.
    pub(crate) fn align_right(mut self, column: usize) -> Self {
        self.right_aligned.push(column);
        self
    }

    /// Adds a row; it should have a cell for each heading.
    pub(crate) fn add_row(&mut self, cells: impl IntoIterator<Item = String>) {
        // Cells hold texts of tenants: control characters could steer a terminal.
        self.rows.push(
            cells
                .into_iter()
                .map(|cell| cell.replace(char::is_control, " "))
                .collect(),
        );
    }

    /// Puts a column before the others; `cells` has one for each row.
    pub(crate) fn prepend_column(&mut self, heading: &str, cells: Vec<String>) {
        let heading = std::iter::once(heading.to_owned());
        for (row, cell) in self.rows.iter_mut().zip(heading.chain(cells)) {
            row.insert(0, cell.replace(char::is_control, " "));
        }
        self.right_aligned
            .iter_mut()
            .for_each(|column| *column += 1);
    }

    /// Returns the table as text, a newline after each row.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                // Characters, not bytes: units such as µs would shift the columns.
                .map(|cell| cell.chars().count())
                .max()
        };
        let widths: Vec<_> = (0..columns)
            .map(|column| width(column).unwrap_or(0))
            .collect();
        let mut out = String::new();
        for row in &self.rows {
            let cell = |(column, cell): (usize, &String)| match self.right_aligned.contains(&column)
            {
                true => format!("{cell:>width$}", width = widths[column]),
                false => format!("{cell:<width$}", width = widths[column]),
            };
            let line = row
                .iter()
                .enumerate()
                .map(cell)
                .collect::<Vec<_>>()
                .join("  ");
            // Padding after the last cell would wrap on narrow terminals.
            out += line.trim_end();
            out.push('\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::TextTable;

    #[test]
    fn a_column_can_come_before_the_others() {
        let mut table = TextTable::new(&["NAME", "N"]).align_right(1);
        table.add_row(["x".into(), "7".into()]);
        table.prepend_column("NODE", vec!["a".into()]);
        assert_eq!(table.render(), "NODE  NAME  N\na     x     7\n");
    }

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let mut table = TextTable::new(&["NAME", "N", "IMAGE"]).align_right(1);
        table.add_row(["long-name".into(), "7".into(), "x\ny".into()]);
        table.add_row(["é".into(), "100".into(), String::new()]);
        assert_eq!(
            table.render(),
            "NAME         N  IMAGE\nlong-name    7  x y\né          100\n"
        );
    }
}
