//! The ratios over the size, one panel for each operation.

use super::result::{OPERATIONS, Operation, Row};
use super::{PEERS, Report};
use crate::size_name;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const COLORS: [RGBColor; 5] = [
    BLUE,
    RED,
    RGBColor(0, 128, 0),
    MAGENTA,
    RGBColor(200, 120, 0),
];
const PANEL: (u32, u32) = (520, 330);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failed = Box<dyn std::error::Error>;

/// Writes the file.
pub fn ratios(file: &Path, report: &Report) -> Result<(), Failed> {
    let shown: Vec<Operation> = OPERATIONS
        .into_iter()
        .filter(|o| report.rows.iter().any(|r| r.operation == *o))
        .collect();
    // One panel more for what the colours mean.
    let lines = (shown.len() + 1).div_ceil(2);
    let size = (2 * PANEL.0, 30 + lines as u32 * PANEL.1);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    let title = format!(
        "time of the peer / ours, {} ranks on {} cores, {}",
        report.ranks, report.cores, report.date
    );
    let area = area.titled(&title, ("sans-serif", 17))?;
    let panels = area.split_evenly((lines, 2));
    for (operation, panel) in shown.iter().zip(&panels) {
        draw(panel, report, *operation)?;
    }
    legend(&panels[shown.len()], report)?;
    area.present()?;
    Ok(())
}

fn draw(area: &Area, report: &Report, operation: Operation) -> Result<(), Failed> {
    let rows = || report.rows.iter().filter(|r| r.operation == operation);
    let span = |value: fn(&Row) -> f64, start: (f64, f64)| {
        let values = rows().map(value).filter(|v| v.is_finite() && *v > 0.0);
        values.fold(start, |(a, b), v| (a.min(v), b.max(v)))
    };
    let x = span(|r| r.bytes as f64, (f64::MAX, 0.0));
    let y = (
        span(|r| r.ratio.p10, (1.0, 1.0)).0 / 1.3,
        span(|r| r.ratio.p90, (1.0, 1.0)).1 * 1.3,
    );
    let x = (x.0 / 1.5, x.1 * 1.5);
    let mut chart = ChartBuilder::on(area)
        .caption(operation.name(), ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(32)
        .y_label_area_size(52)
        .build_cartesian_2d((x.0..x.1).log_scale().base(2.0), (y.0..y.1).log_scale())?;
    chart
        .configure_mesh()
        .x_labels(8)
        .y_labels(6)
        .x_label_formatter(&|v| size_name(v.round() as u64))
        .y_label_formatter(&|v| format!("{v}"))
        .draw()?;
    chart.draw_series(LineSeries::new([(x.0, 1.0), (x.1, 1.0)], &BLACK))?;
    for (peer, color) in PEERS.iter().zip(COLORS) {
        let mine = || rows().filter(|r| r.peer == peer.key);
        let point = |r: &Row, value: f64| (r.bytes as f64, value);
        chart.draw_series(LineSeries::new(
            mine().map(|r| point(r, r.ratio.median)),
            color,
        ))?;
        chart.draw_series(
            mine().map(|r| PathElement::new([point(r, r.ratio.p10), point(r, r.ratio.p90)], color)),
        )?;
        chart.draw_series(
            mine().map(|r| Circle::new(point(r, r.ratio.median), 3, color.filled())),
        )?;
    }
    Ok(())
}

fn legend(area: &Area, report: &Report) -> Result<(), Failed> {
    let mut y = 60;
    for (peer, color) in PEERS.iter().zip(COLORS) {
        let Some((_, name)) = report.names.iter().find(|(key, _)| *key == peer.key) else {
            continue;
        };
        area.draw(&PathElement::new([(70, y), (110, y)], color))?;
        area.draw(&Circle::new((90, y), 3, color.filled()))?;
        area.draw(&Text::new(name.clone(), (122, y - 7), ("sans-serif", 15)))?;
        y += 26;
    }
    for line in [
        "median and p10..p90 of the ratios of neighbouring blocks;",
        "above 1 ours is faster",
    ] {
        area.draw(&Text::new(line, (70, y + 4), ("sans-serif", 13)))?;
        y += 20;
    }
    Ok(())
}
