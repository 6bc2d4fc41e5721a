//! Counts what members do who meet in a directory, by their number: `cargo bench --bench rendezvous_scale`.
//!
//! It runs the protocol in its simulated world, where every operation is counted and the directory serves one operation
//! after the other, so that its times are those of that world and the same on every machine. `-- FILE.svg` draws what one
//! member does: work that grows with the number of members is a level line. Without `--bench` it only draws one.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

use plotters::prelude::*;

const TEST: &str = "rendezvous::directory::simulation::scale";
const SIZE: (u32, u32) = (1100, 600);
/// What is named stands beside the plot, where no point is.
const LEGEND_WIDTH: u32 = 240;

/// What is drawn: a field of the counts, its name in words, and a colour that the colour-blind tell apart (Okabe and Ito).
const KINDS: [(&str, &str, RGBColor); 7] = [
    ("created", "files", RGBColor(0, 114, 178)),
    ("opened", "opens", RGBColor(213, 94, 0)),
    ("listings", "listings", RGBColor(0, 158, 115)),
    ("entries", "entries listed", RGBColor(204, 121, 167)),
    ("written_bytes", "bytes written", RGBColor(230, 159, 0)),
    ("read_bytes", "bytes read, for each pair", RGBColor(90, 90, 90)),
    ("microseconds", "microseconds", RGBColor(86, 180, 233)),
];

/// What so many members did together, in the order of [`KINDS`].
type Row = (u64, [f64; KINDS.len()]);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = std::env::args().skip(1).collect::<Vec<_>>();
    if !arguments.iter().any(|argument| argument == "--bench") {
        let few = "scale 64 0.3 Counts { created: 1, opened: 2, listings: 3, entries: 4, read_bytes: 5, written_bytes: 6 }";
        let row = parse(few).ok_or("a line of counts is not understood")?;
        return draw(&[row, (128, row.1.map(|value| 2.0 * value))])
            .map(|picture| println!("a picture of {} bytes", picture.len()));
    }
    let rows = measure()?;
    let names = KINDS.map(|(_, name, _)| name.split(',').next().unwrap_or(name));
    println!("members {}", names.map(|name| format!("{name:>15}")).join(" "));
    for (count, values) in &rows {
        println!("{count:>7} {}", values.map(|value| format!("{value:>15}")).join(" "));
    }
    if let Some(file) = arguments.iter().find(|argument| !argument.starts_with("--")) {
        std::fs::write(Path::new(file), draw(&rows)?)?;
    }
    Ok(())
}

/// Plays the meetings; a line is printed for each number of members.
fn measure() -> Result<Vec<Row>, Box<dyn Error>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["test", "--release", "--locked", "--quiet", "--package", "uform", "--lib", "--"]);
    command.args([TEST, "--exact", "--ignored", "--nocapture"]);
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8(output.stdout)?;
    let rows = text.lines().filter_map(parse).collect::<Vec<_>>();
    if !output.status.success() || rows.is_empty() {
        return Err(format!("{TEST} ended with {}:\n{text}", output.status).into());
    }
    Ok(rows)
}

/// The counts of a line `scale MEMBERS SECONDS Counts { FIELD: NUMBER, .. }`.
fn parse(line: &str) -> Option<Row> {
    let mut words = line.strip_prefix("scale ")?.split_whitespace();
    let count = words.next()?.parse().ok()?;
    let seconds = words.next()?.parse::<f64>().ok()?;
    let words = words.collect::<Vec<_>>();
    let field = |name: &str| -> Option<f64> {
        if name == "microseconds" {
            return Some((1e6 * seconds).round());
        }
        let place = words.iter().position(|word| word.strip_suffix(':') == Some(name))?;
        words.get(place + 1)?.trim_end_matches(',').parse().ok()
    };
    let mut values = [0.0; KINDS.len()];
    for (value, (name, ..)) in values.iter_mut().zip(KINDS) {
        *value = field(name)?;
    }
    Some((count, values))
}

/// A line for each kind of operation, both axes logarithmic.
fn draw(rows: &[Row]) -> Result<String, Box<dyn Error>> {
    let of_each = |count: u64, kind: usize, value: f64| {
        let members = count as f64;
        value / if KINDS[kind].0 == "read_bytes" { members * members } else { members }
    };
    let line =
        |kind: usize| rows.iter().map(move |(count, all)| (*count as f64, of_each(*count, kind, all[kind])));
    let counts = rows.iter().map(|(count, _)| *count as f64);
    let across = counts.clone().fold(f64::INFINITY, f64::min) / 1.3..counts.fold(1.0, f64::max) * 1.3;
    let most = (0..KINDS.len()).flat_map(line).map(|point| point.1).fold(10.0, f64::max);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let (plot, legend) = root.split_horizontally(SIZE.0 - LEGEND_WIDTH);
        let mut chart = ChartBuilder::on(&plot)
            .caption("What each member does to meet in a directory", ("sans-serif", 22))
            .margin(16)
            .x_label_area_size(56)
            .y_label_area_size(84)
            .build_cartesian_2d(across.log_scale().base(2.0), (1.0..2.0 * most).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("members")
            .y_desc("for each member")
            .label_style(("sans-serif", 15))
            .axis_desc_style(("sans-serif", 17))
            .x_label_formatter(&|count| format!("{count:.0}"))
            .y_label_formatter(&|value| format!("{value:.0}"))
            .light_line_style(RGBColor(240, 240, 240))
            .bold_line_style(RGBColor(215, 215, 215))
            .draw()?;
        // In the order in which the lines lie at the right end.
        let last = |kind: usize| line(kind).next_back().map_or(0.0, |point| point.1);
        let mut order = (0..KINDS.len()).collect::<Vec<_>>();
        order.sort_by(|one, other| last(*other).total_cmp(&last(*one)));
        for (row, kind) in order.into_iter().enumerate() {
            let (_, name, colour) = KINDS[kind];
            chart.draw_series(LineSeries::new(line(kind), colour.stroke_width(2)))?;
            chart.draw_series(line(kind).map(|point| Circle::new(point, 4, colour.filled())))?;
            let height = 70 + 26 * i32::try_from(row)?;
            legend.draw(&PathElement::new(vec![(0, height), (26, height)], colour.stroke_width(2)))?;
            legend.draw(&Circle::new((13, height), 4, colour.filled()))?;
            legend.draw(&Text::new(name, (36, height - 7), ("sans-serif", 15)))?;
        }
        root.present()?;
    }
    Ok(text)
}
