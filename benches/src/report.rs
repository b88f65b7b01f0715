//! What was seen, as a page of tables and plots beside a list of targets.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use super::cost;
use super::measure::{Spread, short};
use super::support::Server;
use plotters::prelude::*;

/// Collects and writes `target/bench/report.md`.
#[derive(Debug)]
pub(crate) struct Report {
    folder: PathBuf,
    /// The server and the machine.
    place: String,
    targets: String,
    body: String,
}

/// What a figure is to reach.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
}

/// One line of a plot.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Colors that stay apart for the color-blind (Okabe and Ito).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

impl Report {
    pub(crate) fn begin() -> Self {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
            || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target"),
            PathBuf::from,
        );
        Self {
            folder: target.join("bench"),
            place: place(),
            targets: String::new(),
            body: String::new(),
        }
    }

    pub(crate) fn section(&mut self, name: &str, about: &str) {
        println!("\n== {name}: {about}");
        let _ = write!(self.body, "\n## {name}\n\n{about}\n");
    }

    pub(crate) fn text(&mut self, text: &str) {
        println!("{text}");
        let _ = write!(self.body, "\n{text}\n");
    }

    /// A figure that is to reach something.
    pub(crate) fn target(&mut self, what: &str, target: Target, seen: Spread) {
        let (sign, bound, reached) = match target {
            Target::AtLeast(bound) => ('≥', bound, seen.median >= bound),
            Target::AtMost(bound) => ('≤', bound, seen.median <= bound),
        };
        let said = if reached { "reached" } else { "**missed**" };
        println!("{what}: {seen}, to be {sign} {}: {said}", short(bound));
        let _ = writeln!(
            self.targets,
            "| {what} | {sign} {} | {seen} | {said} |",
            short(bound)
        );
    }

    pub(crate) fn table(&mut self, columns: &[&str], rows: &[Vec<String>]) {
        let mut lines = vec![columns.iter().map(|&column| column.to_owned()).collect()];
        lines.push(vec!["---".to_owned(); columns.len()]);
        lines.extend(rows.iter().cloned());
        self.body.push('\n');
        for line in lines {
            let line = format!("| {} |", line.join(" | "));
            println!("{line}");
            let _ = writeln!(self.body, "{line}");
        }
    }

    /// A plot with logarithmic axes, as `NAME.svg`.
    pub(crate) fn plot(&mut self, name: &str, title: &str, axes: [&str; 2], lines: &[Line]) {
        let file = self.folder.join(format!("{name}.svg"));
        fs::create_dir_all(&self.folder).expect("the target folder can be written");
        draw(&file, title, axes, lines).expect("the target folder can be written");
        let _ = write!(self.body, "\n![{title}]({name}.svg)\n");
    }

    pub(crate) fn write(&self) {
        fs::create_dir_all(&self.folder).expect("the target folder can be written");
        let mut text = String::from(
            "# Benchmark\n\nMedians [least..most] over interleaved rounds of one run. Only ratios count: absolute figures drift with the machine.\n",
        );
        let _ = write!(text, "\nSeen on {}.\n", self.place);
        if !self.targets.is_empty() {
            text.push_str(
                "\n## Targets\n\n| figure | target | seen | |\n| --- | --- | --- | --- |\n",
            );
            text.push_str(&self.targets);
        }
        text.push_str(&self.body);
        let file = self.folder.join("report.md");
        fs::write(&file, text).expect("the target folder can be written");
        println!("\nwritten to {}", file.display());
    }
}

/// What the figures depend on most: the server's version and the number of cores.
fn place() -> String {
    let server = Server::start();
    let info = cost::info(&server, "server");
    let version = |name| info.lines().find_map(|line| line.strip_prefix(name));
    // Valkey names a version of Redis too: the one that it is compatible with.
    let version = match (version("valkey_version:"), version("redis_version:")) {
        (Some(valkey), _) => format!("Valkey {}", valkey.trim()),
        (None, redis) => format!("Redis {}", redis.unwrap_or("of unknown version").trim()),
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{version}, {cores} cores, {}", std::env::consts::ARCH)
}

fn range(lines: &[Line], of: impl Fn(&(f64, f64)) -> f64) -> std::ops::Range<f64> {
    let figures = || lines.iter().flat_map(|line| line.points.iter().map(&of));
    let least = figures().fold(f64::INFINITY, f64::min);
    let most = figures().fold(f64::MIN_POSITIVE, f64::max);
    least / 1.3..most * 1.3
}

/// Further to the right, for the legend.
fn with_room(range: std::ops::Range<f64>) -> std::ops::Range<f64> {
    range.start..range.end * (range.end / range.start).powf(0.4)
}

fn draw(
    file: &std::path::Path,
    title: &str,
    [x, y]: [&str; 2],
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(file, (760, 460)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(14)
        .x_label_area_size(42)
        .y_label_area_size(66)
        .build_cartesian_2d(
            with_room(range(lines, |point| point.0)).log_scale(),
            range(lines, |point| point.1).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&|figure| short(*figure))
        .y_label_formatter(&|figure| short(*figure))
        .light_line_style(WHITE)
        .draw()?;
    for (line, color) in lines.iter().zip(COLORS.iter().cycle()) {
        chart
            .draw_series(
                LineSeries::new(line.points.iter().copied(), color.stroke_width(2)).point_size(4),
            )?
            .label(&line.name)
            .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    area.present()?;
    Ok(())
}
