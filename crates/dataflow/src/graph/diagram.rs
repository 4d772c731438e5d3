//! Diagrams of a graph: DOT for other programs, SVG for browsers.

use std::collections::HashMap;
use std::fmt::Write;

use super::{GraphStage, StageGraph};

// All sizes are in SVG user units. The grid leaves room for the arrows and their labels between the
// boxes.
const BOX_WIDTH: usize = 130;
const BOX_HEIGHT: usize = 46;
const GRID_STEP: (usize, usize) = (210, 76);
const MARGIN: usize = 20;

impl StageGraph {
    /// Renders the graph in the DOT language of Graphviz.
    pub fn to_dot(&self) -> String {
        let mut text = String::from("digraph job {\n  rankdir=LR;\n  node [shape=box];\n");
        for stage in &self.stages {
            let style = if stage.can_scale_out() {
                ", style=dashed"
            } else {
                ""
            };
            let _ = writeln!(
                text,
                "  \"{0}\" [label=\"{0} × {1}\"{style}];",
                stage.name,
                worker_count(stage)
            );
        }
        for edge in &self.edges {
            let _ = writeln!(
                text,
                "  \"{}\" -> \"{}\" [label=\"{}\"];",
                edge.from,
                edge.to,
                edge.distribution.name()
            );
        }
        text.push_str("}\n");
        text
    }

    /// Renders the graph as SVG, in columns from left to right. Names must have been checked: they
    /// are not escaped.
    pub fn to_svg(&self) -> String {
        let positions = self.box_positions();
        let width = positions.values().map(|place| place.0).max().unwrap_or(0) + BOX_WIDTH + MARGIN;
        let bottom =
            positions.values().map(|place| place.1).max().unwrap_or(0) + BOX_HEIGHT + MARGIN;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{bottom}\" font-family=\"sans-serif\" \
             font-size=\"13\" text-anchor=\"middle\">\n<defs><marker id=\"tip\" markerWidth=\"8\" markerHeight=\"8\" refX=\"8\" \
             refY=\"4\" orient=\"auto\"><path d=\"M0,0 L8,4 L0,8 z\"/></marker></defs>\n"
        );
        // Edges first: the boxes of the stages cover their ends.
        for edge in &self.edges {
            if let (Some(from), Some(to)) = (positions.get(&*edge.from), positions.get(&*edge.to)) {
                draw_edge(&mut text, *from, *to, edge.distribution.name());
            }
        }
        for stage in &self.stages {
            draw_stage(&mut text, stage, positions[&*stage.name]);
        }
        text.push_str("</svg>\n");
        text
    }

    fn box_positions(&self) -> HashMap<&str, (usize, usize)> {
        let columns = self.stage_columns();
        let mut filled: HashMap<usize, usize> = HashMap::new();
        let position = |stage: &GraphStage| {
            let column = columns[&*stage.name];
            let row = filled.entry(column).or_default();
            *row += 1;
            (
                MARGIN + column * GRID_STEP.0,
                MARGIN + (*row - 1) * GRID_STEP.1,
            )
        };
        let positions: Vec<_> = self.stages.iter().map(position).collect();
        self.stages
            .iter()
            .map(|stage| &*stage.name)
            .zip(positions)
            .collect()
    }

    /// Column of each stage: the number of edges on the longest path to it.
    fn stage_columns(&self) -> HashMap<&str, usize> {
        let mut columns: HashMap<&str, usize> =
            self.stages.iter().map(|stage| (&*stage.name, 0)).collect();
        // Bellman-Ford: as many rounds as stages settle every path, whatever the order of the
        // edges.
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

fn worker_count(stage: &GraphStage) -> String {
    if stage.can_scale_out() {
        format!("{}–{}", stage.workers, stage.max_workers())
    } else {
        stage.workers.to_string()
    }
}

/// Draws a stage; a dashed frame means that it can scale out.
fn draw_stage(text: &mut String, stage: &GraphStage, (x, y): (usize, usize)) {
    let (name, workers) = (&stage.name, worker_count(stage));
    let dashed = if stage.can_scale_out() {
        " stroke-dasharray=\"6 4\""
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"6\" fill=\"#eef3fb\" stroke=\"#345\"{dashed}/>\
         <text x=\"{0}\" y=\"{1}\">{name}</text><text x=\"{0}\" y=\"{2}\" fill=\"#567\">× {workers}</text>",
        x + BOX_WIDTH / 2,
        y + 20,
        y + 37
    );
}

fn draw_edge(text: &mut String, from: (usize, usize), to: (usize, usize), label: &str) {
    let (x, y, right, low) = (
        from.0 + BOX_WIDTH,
        from.1 + BOX_HEIGHT / 2,
        to.0,
        to.1 + BOX_HEIGHT / 2,
    );
    let _ = writeln!(
        text,
        "<line x1=\"{x}\" y1=\"{y}\" x2=\"{right}\" y2=\"{low}\" stroke=\"#345\" marker-end=\"url(#tip)\"/>\
         <text x=\"{}\" y=\"{}\" font-size=\"11\" fill=\"#567\">{label}</text>",
        x.midpoint(right),
        y.midpoint(low) - 5
    );
}
