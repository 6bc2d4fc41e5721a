//! The times of a report as a picture: bytes and microseconds, both on logarithmic axes.

use std::error::Error as StdError;

use plotters::prelude::*;

use super::report::{Report, Row, Timing, shown};
use crate::Failure;

const WIDTH: u32 = 960;
const HEIGHT: u32 = 600;

/// Colours that the colour-blind tell apart (Okabe and Ito), in the order of the lines.
const COLOURS: [RGBColor; 5] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(90, 90, 90),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
];

/// One line: its name and its points.
type Line = (String, Vec<(f64, f64)>);

/// The picture as SVG.
pub(super) fn draw(report: &Report) -> Result<String, Failure> {
    drawn(report)
        .map_err(|error| Failure::system("draw the picture", std::io::Error::other(error.to_string())))
}

fn lines(report: &Report) -> Vec<Line> {
    let of = |name: &str, value: &dyn Fn(&Row) -> Option<f64>| -> Line {
        let points = report.rows.iter().filter(|row| row.bytes > 0);
        let points = points.filter_map(|row| Some((row.bytes as f64, value(row)?)));
        (name.to_owned(), points.collect())
    };
    let time = |timing: &Option<Timing>| timing.as_ref().map(|timing| timing.microseconds);
    let mut lines = vec![
        of("uform, arrays of an arena", &|row| time(&row.arena)),
        of("uform, private arrays", &|row| time(&row.private)),
        of("limit of memory", &|row| row.limit_microseconds),
    ];
    for peer in &report.peers {
        let points = peer.rows.iter().map(|row| (row.bytes as f64, row.microseconds)).collect();
        lines.push((peer.what.clone().unwrap_or_else(|| peer.name.clone()), points));
    }
    // A logarithm has no nothing.
    for (_, points) in &mut lines {
        points.retain(|(bytes, time)| *bytes > 0.0 && *time > 0.0 && time.is_finite());
        points.sort_by(|left, right| left.0.total_cmp(&right.0));
    }
    lines.retain(|(_, points)| !points.is_empty());
    lines
}

fn drawn(report: &Report) -> Result<String, Box<dyn StdError>> {
    let lines = lines(report);
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    if points().next().is_none() {
        return Err("a barrier moves no bytes: there is nothing to draw over".into());
    }
    let least = |of: fn((f64, f64)) -> f64| points().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn((f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
    // One size alone still needs a width.
    let across = least(|point| point.0) / 1.3..most(|point| point.0) * 1.3;
    let up = 10_f64.powf(least(|point| point.1).log10().floor())
        ..10_f64.powf(most(|point| point.1).log10().ceil().max(least(|point| point.1).log10().floor() + 1.0));
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let op = report.op.as_ref().map_or_else(String::new, |op| format!(" ({})", op.to_lowercase()));
        let title =
            format!("{} of {}{op}, {} processes", report.verb, report.dtype.to_lowercase(), report.processes);
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 22))
            .margin(16)
            .x_label_area_size(56)
            .y_label_area_size(84)
            .build_cartesian_2d(across.log_scale().base(2.0), up.log_scale())?;
        chart
            .configure_mesh()
            .x_desc("bytes")
            .y_desc("microseconds of a call")
            .label_style(("sans-serif", 15))
            .axis_desc_style(("sans-serif", 17))
            .x_labels(10)
            .x_label_formatter(&|bytes| shown(bytes.round() as usize))
            .y_label_formatter(&|time| format!("{time}"))
            .light_line_style(RGBColor(240, 240, 240))
            .bold_line_style(RGBColor(215, 215, 215))
            .draw()?;
        for (position, (name, points)) in lines.iter().enumerate() {
            let colour = COLOURS[position % COLOURS.len()];
            let style = colour.stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), style))?
                .label(name.as_str())
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 24, y)], style));
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .margin(12)
            .legend_area_size(32)
            .label_font(("sans-serif", 15))
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(180, 180, 180))
            .draw()?;
        root.present()?;
    }
    Ok(text)
}
