//! The topology as a picture: where each box, line and word stands, before anything is drawn.
//!
//! Hosts stand in columns. In each are its memory domains with their cores, its members, and below each member its GPUs;
//! behind GPUs of one multimem domain lies its hull, and hulls of one domain are joined by a line between the columns.

mod host;
mod lane;
mod legend;
mod svg;

use super::run::Topology;
use super::words::counted;
use crate::vocabulary::MultimemTier;

use host::HostPart;

/// The space around everything.
const MARGIN: u32 = 24;
/// The space between boxes that stand side by side.
const GAP: u32 = 12;
/// The space between hosts of one column.
const HOST_GAP: u32 = 24;
/// The space between two lines that run side by side.
const LANE: u32 = 8;
/// The least space before a column, without lanes.
const GUTTER: u32 = 24;
/// The height of title and headline.
const HEAD: u32 = 56;
/// The ratio of width to height that the number of columns aims at.
const ASPECT: f64 = 1.4;

/// A rectangle; lengths are in pixels at a scale of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// The left edge.
    pub x: u32,
    /// The upper edge.
    pub y: u32,
    /// From the left edge to the right one.
    pub width: u32,
    /// From the upper edge to the lower one.
    pub height: u32,
}

impl Area {
    /// The right edge.
    #[must_use]
    pub fn right(&self) -> u32 {
        self.x + self.width
    }

    /// The lower edge.
    #[must_use]
    pub fn bottom(&self) -> u32 {
        self.y + self.height
    }

    /// Whether the two have a point in common that is inside of both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.x < other.right() && other.x < self.right() && self.y < other.bottom() && other.y < self.bottom()
    }

    /// Whether the other lies in this one; edges may touch.
    #[must_use]
    pub fn holds(&self, other: &Self) -> bool {
        self.x <= other.x
            && self.y <= other.y
            && other.right() <= self.right()
            && other.bottom() <= self.bottom()
    }
}

/// What a box stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A host of the run.
    Host,
    /// A memory domain of a host.
    Memory,
    /// Neighbouring cores of one member, by its seat in the host; of nobody for `None`.
    Cores(Option<usize>),
    /// A member, by its seat in the host.
    Member(usize),
    /// The part of a multimem domain that lies in one place.
    Hull {
        /// The number of the domain.
        domain: usize,
        /// How the domain reduces; `None` if it has one GPU.
        tier: Option<MultimemTier>,
    },
    /// A GPU.
    Gpu,
    /// A switch, or links between each two of the GPUs above.
    Bar,
    /// Words without an edge.
    Words,
}

/// How heavy words look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// The title of the picture.
    Title,
    /// The name of a box.
    Name,
    /// What is said of it.
    Plain,
    /// What is said of it, smaller.
    Small,
}

impl Weight {
    /// The size of the letters.
    #[must_use]
    pub fn font_size(self) -> u32 {
        match self {
            Self::Title => 20,
            Self::Name => 12,
            Self::Plain => 11,
            Self::Small => 10,
        }
    }
}

/// One line of words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Where the words begin.
    pub x: u32,
    /// The line that the letters stand on.
    pub y: u32,
    /// The words, cut to the space that there is.
    pub text: String,
    /// How they look.
    pub weight: Weight,
}

/// One box with its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// What it stands for.
    pub kind: Kind,
    /// Where it stands.
    pub area: Area,
    /// The box it stands in, a position in [`Picture::shapes`].
    pub parent: Option<usize>,
    /// The words in it.
    pub labels: Vec<Label>,
    /// Everything about it, shown when it is pointed at; may be empty.
    pub note: String,
}

/// What a line stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineKind {
    /// A link between GPUs, or from a GPU to a switch.
    Link,
    /// What joins the hulls of one multimem domain, by its number.
    Lane(usize),
}

/// A line with right angles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What it stands for.
    pub kind: LineKind,
    /// The corners, both ends included.
    pub points: Vec<(u32, u32)>,
    /// The words on it.
    pub label: Option<Label>,
}

/// A topology as boxes, lines and words; equal topologies give equal pictures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// How wide it is.
    pub width: u32,
    /// How high it is.
    pub height: u32,
    /// What it shows, in one line.
    pub title: String,
    /// The boxes; one that holds another comes before it.
    pub shapes: Vec<Shape>,
    /// The lines, drawn between hulls and what stands on them.
    pub lines: Vec<Line>,
}

impl Picture {
    /// Lays a topology out.
    #[must_use]
    pub fn of(topology: &Topology) -> Self {
        let columns =
            (0..topology.hosts().len()).map(|host| host::columns(topology, host)).max().unwrap_or(1);
        let hosts = (0..topology.hosts().len()).map(|position| HostPart::of(topology, position, columns));
        let hosts = hosts.collect::<Vec<_>>();
        let mut picture =
            Self { width: 0, height: 0, title: topology.headline(), shapes: Vec::new(), lines: Vec::new() };
        lane::place(&mut picture, &hosts);
        picture.head(topology);
        legend::append(&mut picture, topology);
        picture.height += MARGIN;
        picture
    }

    /// The title and the headline, above everything.
    fn head(&mut self, topology: &Topology) {
        let area =
            Area { x: MARGIN, y: MARGIN, width: self.width.saturating_sub(2 * MARGIN), height: HEAD - 8 };
        let headline = topology.headline();
        let run = format!("run {}", topology.run());
        let rest = headline.strip_prefix(run.as_str()).unwrap_or(&headline).trim_start_matches([':', ' ']);
        self.shapes.push(Shape {
            kind: Kind::Words,
            area,
            parent: None,
            labels: vec![
                Label {
                    x: area.x,
                    y: area.y + 20,
                    text: fit(&run, area.width, Weight::Title),
                    weight: Weight::Title,
                },
                Label {
                    x: area.x,
                    y: area.y + 40,
                    text: fit(rest, area.width, Weight::Plain),
                    weight: Weight::Plain,
                },
            ],
            note: headline,
        });
    }

    fn add(&mut self, shape: Shape) -> usize {
        self.shapes.push(shape);
        self.shapes.len() - 1
    }
}

/// How wide a text may become in any common font, in pixels.
#[must_use]
pub fn text_width(text: &str, weight: Weight) -> u32 {
    // In hundredths of the size of the letters.
    let hundredths = text.chars().map(|character| match character {
        ' ' | '.' | ',' | ':' | 'i' | 'l' | 'j' | '\'' | '|' | '(' | ')' | '-' => 42,
        'A'..='Z' | 'm' | 'w' | '0'..='9' | '_' => 70,
        character if character.is_ascii() => 62,
        _ => 110,
    });
    let bold = if matches!(weight, Weight::Title | Weight::Name) { 106 } else { 100 };
    let sum = hundredths.fold(0_u32, u32::saturating_add);
    sum.saturating_mul(weight.font_size()).saturating_mul(bold).div_ceil(10_000)
}

/// The text, cut where it would be wider than that.
fn fit(text: &str, width: u32, weight: Weight) -> String {
    if text_width(text, weight) <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    for character in text.chars() {
        let mut longer = cut.clone();
        longer.push(character);
        longer.push('…');
        if text_width(&longer, weight) > width {
            break;
        }
        longer.pop();
        cut = longer;
    }
    format!("{}…", cut.trim_end())
}

/// The first of these texts that is not wider than that, else the last one, cut.
fn first_fit(texts: &[String], width: u32, weight: Weight) -> String {
    let found = texts.iter().find(|text| text_width(text, weight) <= width);
    found.cloned().unwrap_or_else(|| fit(texts.last().map_or("", String::as_str), width, weight))
}

/// The text in lines that are not wider than that, broken at spaces.
fn wrap(text: &str, width: u32, weight: Weight) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let Some(last) = lines.last_mut() else { break };
        let longer = if last.is_empty() { word.to_owned() } else { format!("{last} {word}") };
        if last.is_empty() || text_width(&longer, weight) <= width {
            *last = fit(&longer, width, weight);
        } else {
            lines.push(fit(word, width, weight));
        }
    }
    lines
}

/// What a domain is called, from many words to few.
fn domain_names(number: usize, gpus: usize, tier: Option<MultimemTier>) -> Vec<String> {
    let way = match tier {
        Some(MultimemTier::SwitchReduced) => ", switch reduced",
        Some(MultimemTier::PeerRead) => ", peer read",
        None => "",
    };
    let count = counted(gpus, "GPU");
    vec![
        format!("multimem domain {number}: {count}{way}"),
        format!("domain {number}: {count}{way}"),
        format!("domain {number}: {count}"),
        format!("domain {number}"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_cut_and_broken_to_their_space() {
        assert_eq!(fit("short", 100, Weight::Plain), "short");
        let cut = fit("a rather long name of a host", 80, Weight::Plain);
        assert!(cut.ends_with('…') && text_width(&cut, Weight::Plain) <= 80, "{cut}");
        let lines = wrap("a rather long reason that needs several lines", 80, Weight::Small);
        assert!(
            lines.len() > 2 && lines.iter().all(|line| text_width(line, Weight::Small) <= 80),
            "{lines:?}"
        );
        assert_eq!(lines.join(" "), "a rather long reason that needs several lines");
        assert_eq!(first_fit(&domain_names(3, 2, None), 60, Weight::Small), "domain 3");
        assert_eq!(fit("", 0, Weight::Small), "");
    }

    #[test]
    fn areas_that_touch_do_not_overlap() {
        let one = Area { x: 0, y: 0, width: 10, height: 10 };
        let beside = Area { x: 10, ..one };
        let inside = Area { x: 5, y: 5, width: 5, height: 5 };
        assert!(!one.overlaps(&beside) && one.overlaps(&inside));
        assert!(one.holds(&inside) && !one.holds(&beside));
    }
}
