//! Tables of text: columns as wide as their widest cell.

use super::text::{grouped, human_bytes, left, right};

/// A column of a table.
#[derive(Debug)]
pub(crate) struct Column {
    /// Its heading.
    pub title: &'static str,
    /// Its cells, as many as the table has rows.
    pub cells: Vec<String>,
    /// Whether it is aligned to the left, as words are.
    pub is_text: bool,
    /// It is no narrower than this.
    pub least: usize,
}

impl Column {
    /// How wide it is.
    pub fn width(&self) -> usize {
        let widest = self.cells.iter().map(|cell| cell.chars().count()).chain([self.title.len()]).max();
        widest.unwrap_or(0).max(self.least)
    }
}

/// One line of a table: the row of this index, or the headings.
pub(crate) fn line(columns: &[Column], row: Option<usize>) -> String {
    let cells = columns.iter().map(|column| {
        let cell = row.map_or(column.title, |row| column.cells.get(row).map_or("", String::as_str));
        if column.is_text { left(cell, column.width()) } else { right(cell, column.width()) }
    });
    cells.collect::<Vec<_>>().join("  ")
}

/// Blocks and bytes of a row; what is None is left out.
pub(crate) type Figures = (Option<u64>, Option<u64>);

/// Columns of blocks, of their bytes in short, and of all their bytes.
pub(crate) fn amounts(rows: &[Figures], short: fn(u64) -> String) -> [Column; 3] {
    let column = |title, least, cell: &dyn Fn(&Figures) -> Option<String>| Column {
        title,
        cells: rows.iter().map(|row| cell(row).unwrap_or_default()).collect(),
        is_text: false,
        least,
    };
    [
        column("blocks", 0, &|row| row.0.map(grouped)),
        column("", 10, &|row| row.1.map(short)),
        column("bytes", 0, &|row| row.1.map(grouped)),
    ]
}

/// Bytes in short, or nothing where that would be the same.
pub(crate) fn rounded(bytes: u64) -> String {
    if bytes < 1024 { String::new() } else { human_bytes(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1023 KiB take a column more than other amounts do: the figures of all rows stand below each other all the same.
    #[test]
    fn figures_stand_below_each_other() {
        let columns =
            amounts(&[(Some(1), Some(1023 << 10)), (Some(1000), Some(7)), (None, Some(1 << 20))], human_bytes);
        let lines = [line(&columns, None), line(&columns, Some(0)), line(&columns, Some(1)), line(&columns, Some(2))];
        assert_eq!(
            lines,
            [
                "blocks                   bytes",
                "     1  1023.00 KiB  1,047,552",
                " 1,000          7 B          7",
                "           1.00 MiB  1,048,576",
            ]
        );
    }
}
