//! Bus bandwidth and time against size, as SVG.
#![forbid(unsafe_code)]

use super::operation::Operation;
use super::report::Report;
use plotters::prelude::*;
use std::path::Path;

/// One line of a diagram.
struct Series {
    label: String,
    /// Size in bytes, bus bandwidth in GB/s, time in microseconds.
    points: Vec<(f64, f64, f64)>,
}

fn series(report: &Report) -> Vec<Series> {
    let ranks = report.header.ranks;
    let mut all: Vec<Series> = Vec::new();
    let several_types = report
        .rows
        .iter()
        .any(|row| row.dtype != report.rows[0].dtype);
    for row in &report.rows {
        let Some(measure) = row.out_of_place.or(row.in_place) else {
            continue;
        };
        let bytes = row.bytes(ranks);
        let (_, bus) = row.bandwidth(measure, ranks);
        if row.operation == Operation::Barrier || bytes == 0 || bus <= 0.0 {
            continue;
        }
        let mut label = row.operation.name().to_owned();
        if several_types {
            label += &format!(" {}", row.dtype.name());
        }
        if let Some(op) = row.reduction.filter(|op| op.name() != "sum") {
            label += &format!(" {}", op.name());
        }
        if let Some(root) = row.root.filter(|root| *root != 0) {
            label += &format!(" root {root}");
        }
        let point = (bytes as f64, bus, measure.seconds * 1e6);
        match all.iter_mut().find(|series| series.label == label) {
            Some(series) => series.points.push(point),
            None => all.push(Series {
                label,
                points: vec![point],
            }),
        }
    }
    all
}

fn size_label(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let step = ((bytes.max(1.0).log2() / 10.0) as usize).min(units.len() - 1);
    let value = bytes / 1024f64.powi(step as i32);
    format!("{} {}", (value * 10.0).round() / 10.0, units[step])
}

fn number_label(value: f64) -> String {
    if value >= 1.0 {
        format!("{}", (value * 10.0).round() / 10.0)
    } else {
        format!("{value:.1e}")
    }
}

fn range(values: impl Iterator<Item = f64> + Clone) -> std::ops::Range<f64> {
    let low = values.clone().fold(f64::INFINITY, f64::min);
    let high = values.fold(0.0, f64::max);
    low / 1.5..high * 1.5
}

/// Ten colours that are told apart on white, also in print.
const COLOURS: [RGBColor; 10] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(90, 90, 90),
    RGBColor(188, 189, 34),
    RGBColor(23, 190, 207),
];

/// Writes the file.
///
/// # Errors
/// What the file system refuses.
pub fn write(report: &Report, path: &Path) -> Result<(), String> {
    draw(report, path).map_err(|error| format!("--plot {}: {error}", path.display()))
}

fn draw(report: &Report, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let all = series(report);
    let area = SVGBackend::new(path, (1000, 1100)).into_drawing_area();
    area.fill(&WHITE)?;
    let header = &report.header;
    let title = format!(
        "flagos-comm {}, {} tier, {}",
        header.version,
        super::report::tier_name(header.info.tier),
        header.ranks_text()
    );
    let area = area.titled(&title, ("sans-serif", 24))?;
    if all.is_empty() {
        let style = ("sans-serif", 18).into_font();
        area.draw(&Text::new(
            "no operation that moves data was measured",
            (40, 60),
            style,
        ))?;
        area.present()?;
        return Ok(());
    }
    let (upper, lower) = area.split_vertically(525);
    let sizes = range(all.iter().flat_map(|s| s.points.iter().map(|p| p.0)));
    for (panel, caption, pick) in [
        (
            &upper,
            "bus bandwidth (GB/s)",
            (|p| p.1) as fn(&(f64, f64, f64)) -> f64,
        ),
        (&lower, "time of one call (µs)", |p| p.2),
    ] {
        let values = range(all.iter().flat_map(|s| s.points.iter().map(pick)));
        let mut chart = ChartBuilder::on(panel)
            .caption(caption, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(45)
            .y_label_area_size(75)
            .build_cartesian_2d(sizes.clone().log_scale().base(2.0), values.log_scale())?;
        chart
            .configure_mesh()
            .x_desc("size")
            .y_desc(caption)
            .x_labels(12)
            .x_label_formatter(&|x| size_label(*x))
            .y_label_formatter(&|y| number_label(*y))
            .label_style(("sans-serif", 14))
            .axis_desc_style(("sans-serif", 15))
            .light_line_style(RGBColor(235, 235, 235))
            .bold_line_style(RGBColor(210, 210, 210))
            .draw()?;
        for (index, series) in all.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let points: Vec<(f64, f64)> = series.points.iter().map(|p| (p.0, pick(p))).collect();
            chart
                .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
                .label(&series.label)
                .legend(move |(x, y)| {
                    PathElement::new(vec![(x, y), (x + 20, y)], colour.stroke_width(3))
                });
            chart.draw_series(points.iter().map(|p| Circle::new(*p, 3, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(180, 180, 180))
            .label_font(("sans-serif", 14))
            .draw()?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        assert_eq!(size_label(8.0), "8 B");
        assert_eq!(size_label(65536.0), "64 KiB");
        assert_eq!(size_label(1.5 * 1048576.0), "1.5 MiB");
        assert_eq!(number_label(0.0012), "1.2e-3");
        assert_eq!(number_label(1000.0), "1000");
    }
}
