//! A picture of the graph: DOT for other programs, SVG for a browser.

use std::collections::HashMap;
use std::fmt::Write;

use super::{Graph, Stage};

const WIDE: usize = 130;
const HIGH: usize = 46;
const STEP: (usize, usize) = (210, 76);
const MARGIN: usize = 20;

impl Graph {
    /// In Graphviz's language.
    pub fn dot(&self) -> String {
        let mut text = String::from("digraph job {\n  rankdir=LR;\n  node [shape=box];\n");
        for stage in &self.stages {
            let style = if stage.grows() { ", style=dashed" } else { "" };
            let _ = writeln!(text, "  \"{0}\" [label=\"{0} × {1}\"{style}];", stage.name, count(stage));
        }
        for edge in &self.edges {
            let _ = writeln!(text, "  \"{}\" -> \"{}\" [label=\"{}\"];", edge.from, edge.to, edge.how.name());
        }
        text.push_str("}\n");
        text
    }

    /// Stages in columns, each one further than all before it. Names must have been checked: they are written as they are.
    pub fn svg(&self) -> String {
        let places = self.places();
        let right = places.values().map(|place| place.0).max().unwrap_or(0) + WIDE + MARGIN;
        let low = places.values().map(|place| place.1).max().unwrap_or(0) + HIGH + MARGIN;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{right}\" height=\"{low}\" font-family=\"sans-serif\" \
             font-size=\"13\" text-anchor=\"middle\">\n<defs><marker id=\"tip\" markerWidth=\"8\" markerHeight=\"8\" refX=\"8\" \
             refY=\"4\" orient=\"auto\"><path d=\"M0,0 L8,4 L0,8 z\"/></marker></defs>\n"
        );
        for edge in &self.edges {
            if let (Some(from), Some(to)) = (places.get(&*edge.from), places.get(&*edge.to)) {
                arrow(&mut text, *from, *to, edge.how.name());
            }
        }
        for stage in &self.stages {
            draw(&mut text, stage, places[&*stage.name]);
        }
        text.push_str("</svg>\n");
        text
    }

    fn places(&self) -> HashMap<&str, (usize, usize)> {
        let columns = self.columns();
        let mut filled: HashMap<usize, usize> = HashMap::new();
        let place = |stage: &Stage| {
            let column = columns[&*stage.name];
            let row = filled.entry(column).or_default();
            *row += 1;
            (MARGIN + column * STEP.0, MARGIN + (*row - 1) * STEP.1)
        };
        let places: Vec<_> = self.stages.iter().map(place).collect();
        self.stages.iter().map(|stage| &*stage.name).zip(places).collect()
    }

    /// How many edges the longest way to a stage has. As often as there are stages: enough for any order without cycles.
    fn columns(&self) -> HashMap<&str, usize> {
        let mut columns: HashMap<&str, usize> = self.stages.iter().map(|stage| (&*stage.name, 0)).collect();
        for _ in &self.stages {
            for edge in &self.edges {
                let after = columns.get(&*edge.from).map_or(0, |column| column + 1);
                if let Some(column) = columns.get_mut(&*edge.to) {
                    *column = after.max(*column);
                }
            }
        }
        columns
    }
}

fn count(stage: &Stage) -> String {
    if stage.grows() { format!("{}–{}", stage.workers, stage.most()) } else { stage.workers.to_string() }
}

/// A stage that may grow has a dashed frame.
fn draw(text: &mut String, stage: &Stage, (x, y): (usize, usize)) {
    let (name, workers) = (&stage.name, count(stage));
    let dashed = if stage.grows() { " stroke-dasharray=\"6 4\"" } else { "" };
    let _ = writeln!(
        text,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{WIDE}\" height=\"{HIGH}\" rx=\"6\" fill=\"#eef3fb\" stroke=\"#345\"{dashed}/>\
         <text x=\"{0}\" y=\"{1}\">{name}</text><text x=\"{0}\" y=\"{2}\" fill=\"#567\">× {workers}</text>",
        x + WIDE / 2,
        y + 20,
        y + 37
    );
}

fn arrow(text: &mut String, from: (usize, usize), to: (usize, usize), label: &str) {
    let (x, y, right, low) = (from.0 + WIDE, from.1 + HIGH / 2, to.0, to.1 + HIGH / 2);
    let _ = writeln!(
        text,
        "<line x1=\"{x}\" y1=\"{y}\" x2=\"{right}\" y2=\"{low}\" stroke=\"#345\" marker-end=\"url(#tip)\"/>\
         <text x=\"{}\" y=\"{}\" font-size=\"11\" fill=\"#567\">{label}</text>",
        x.midpoint(right),
        y.midpoint(low) - 5
    );
}
