//! Search for a cycle in a directed graph, without recursion: files of untrusted authors could
//! exhaust the stack.

use std::collections::HashMap;

/// Finds a cycle, as indexes into `edges`: each edge ends where the next one starts, and the last
/// where the first starts.
pub(crate) fn find_cycle(edges: &[(usize, usize)]) -> Option<Vec<usize>> {
    let in_edges = remaining_in_edges(edges);
    // The smallest node: the same file always reports the same cycle.
    let mut node = edges
        .iter()
        .map(|(_, to)| *to)
        .filter(|to| in_edges.contains_key(to))
        .min()?;
    let mut seen = HashMap::new();
    let mut backward_path = Vec::new();
    // Every remaining node has an edge from a remaining node: walking backwards must reach a node
    // again.
    while !seen.contains_key(&node) {
        seen.insert(node, backward_path.len());
        let edge = *in_edges.get(&node)?;
        backward_path.push(edge);
        node = edges[edge].0;
    }
    let mut cycle = backward_path.split_off(seen[&node]);
    cycle.reverse();
    Some(cycle)
}

/// Removes nodes without incoming edges again and again (Kahn's algorithm). Returns the remaining
/// nodes, each with an edge from a remaining node.
fn remaining_in_edges(edges: &[(usize, usize)]) -> HashMap<usize, usize> {
    let mut degree: HashMap<usize, usize> = HashMap::new();
    let mut out_edges: HashMap<usize, Vec<usize>> = HashMap::new();
    for (from, to) in edges {
        degree.entry(*from).or_default();
        *degree.entry(*to).or_default() += 1;
        out_edges.entry(*from).or_default().push(*to);
    }
    let mut unentered: Vec<usize> = degree
        .iter()
        .filter(|(_, n)| **n == 0)
        .map(|(node, _)| *node)
        .collect();
    while let Some(node) = unentered.pop() {
        degree.remove(&node);
        for to in out_edges.get(&node).into_iter().flatten() {
            // `degree` counts edges from nodes that remain; a node without any is removed too.
            let count = degree
                .get_mut(to)
                .expect("a node with incoming edges is not removed yet");
            *count -= 1;
            if *count == 0 {
                unentered.push(*to);
            }
        }
    }
    let remains = |node: &usize| degree.contains_key(node);
    edges
        .iter()
        .enumerate()
        .filter(|(_, (from, to))| remains(from) && remains(to))
        .map(|(index, (_, to))| (*to, index))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cycle_is_closed_and_a_tree_has_none() {
        assert_eq!(find_cycle(&[(0, 1), (1, 2), (0, 2)]), None);
        let edges = [(9, 0), (0, 1), (1, 2), (2, 0), (2, 5)];
        assert_eq!(find_cycle(&edges).map(|c| c.len()), Some(3));
    }

    proptest! {
        #[test]
        fn found_cycles_are_cycles_and_forward_edges_have_none(edges in prop::collection::vec((0usize..8, 0usize..8), 0..20)) {
            if let Some(cycle) = find_cycle(&edges) {
                for (index, edge) in cycle.iter().enumerate() {
                    prop_assert_eq!(edges[*edge].1, edges[cycle[(index + 1) % cycle.len()]].0);
                }
            }
            let upwards: Vec<_> = edges.iter().copied().filter(|(from, to)| from < to).collect();
            prop_assert_eq!(find_cycle(&upwards), None);
            let with_loop: Vec<_> = upwards.iter().copied().chain([(3, 4), (4, 3)]).collect();
            prop_assert!(find_cycle(&with_loop).is_some());
        }
    }
}
