//! Circles of imports: the strongly connected components of more than one file.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::FileGraph;

/// Finds the circles, largest first.
pub(super) fn find(graph: &FileGraph) -> Vec<Vec<PathBuf>> {
    let mut search = Search {
        graph,
        ..Search::new(graph)
    };
    for file in graph.keys() {
        if !search.visited.contains_key(file) {
            search.visit(file);
        }
    }
    search
        .circles
        .sort_by_key(|files| std::cmp::Reverse(files.len()));
    search.circles
}

/// Tarjan's algorithm.
struct Search<'a> {
    graph: &'a FileGraph,
    /// The order of the visit, and the earliest visited file that can be reached.
    visited: BTreeMap<&'a PathBuf, (usize, usize)>,
    open: Vec<&'a PathBuf>,
    circles: Vec<Vec<PathBuf>>,
}

impl<'a> Search<'a> {
    fn new(graph: &'a FileGraph) -> Self {
        Self {
            graph,
            visited: BTreeMap::new(),
            open: Vec::new(),
            circles: Vec::new(),
        }
    }

    fn visit(&mut self, file: &'a PathBuf) -> usize {
        let number = self.visited.len();
        self.visited.insert(file, (number, number));
        self.open.push(file);
        let mut earliest = number;
        for next in self.graph.get(file).into_iter().flatten() {
            let reached = match self.visited.get(next) {
                None => self.visit(next),
                // An open file is on the current path, so a circle leads back to it.
                Some((number, _)) if self.open.contains(&next) => *number,
                // A closed component cannot reach this file.
                Some(_) => continue,
            };
            earliest = earliest.min(reached);
        }
        self.visited.insert(file, (number, earliest));
        // Nothing earlier is reachable: the file is the root of its component.
        if earliest == number {
            self.close(file);
        }
        earliest
    }

    /// Takes a component off the stack.
    fn close(&mut self, first: &PathBuf) {
        let at = self
            .open
            .iter()
            .rposition(|open| *open == first)
            .unwrap_or(0);
        let mut files: Vec<_> = self.open.drain(at..).cloned().collect();
        // Stable output, whatever the order of the visit.
        files.sort();
        // A single file is no circle: imports of itself are not in the graph.
        if files.len() > 1 {
            self.circles.push(files);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(arrows: &[(&str, &str)]) -> Vec<usize> {
        let mut graph = FileGraph::new();
        for (from, to) in arrows {
            graph
                .entry(PathBuf::from(from))
                .or_default()
                .insert(PathBuf::from(to));
        }
        find(&graph).iter().map(Vec::len).collect()
    }

    #[test]
    fn files_that_reach_each_other_are_a_circle() {
        assert_eq!(circles(&[("a", "b"), ("b", "c"), ("a", "c")]), [0; 0]);
        assert_eq!(
            circles(&[
                ("a", "b"),
                ("b", "c"),
                ("c", "a"),
                ("c", "d"),
                ("d", "e"),
                ("e", "d")
            ]),
            [3, 2]
        );
        assert_eq!(
            circles(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")]),
            [3],
            "two circles that share a file are one"
        );
    }
}
