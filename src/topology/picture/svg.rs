//! A picture as SVG 1.1 that stands for itself: no outside font, style, script or image.

use std::fmt::Write;

use super::{Kind, Label, Line, LineKind, Picture, Shape, Weight};
use crate::vocabulary::MultimemTier;

/// The colours of members' cores.
const MEMBERS: [&str; 8] =
    ["#4e79a7", "#9c755f", "#59a89c", "#b6992d", "#6b5b95", "#d37295", "#79706e", "#a0cbe8"];

/// The colours of multimem domains.
const DOMAINS: [&str; 8] =
    ["#2a9d4b", "#c2571a", "#7b4fb5", "#c23b73", "#1c84b8", "#8a7a00", "#b3402e", "#4a5bd0"];

/// Light colours, and dark ones where the viewer asks for them.
const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#1c2430}
.title{font-size:20px;font-weight:600}.name{font-size:12px;font-weight:600}.plain{font-size:11px}
.small{font-size:10px;fill:#4a5563}
.paper{fill:#ffffff}.host{fill:#f4f6f9;stroke:#9aa5b4}.memory{fill:#ffffff;stroke:#c3cbd6}
.member{fill:#ffffff;stroke:#9aa5b4}.gpu{fill:#ffffff;stroke:#6b7787}.free{fill:#d5dbe3}
.bar{fill:#e3e8ef;stroke:#8b97a7}.link{fill:none;stroke:#6b7787;stroke-width:1.5}
.alone{fill:none;stroke:#b4bdc9;stroke-dasharray:3 3}
.hull{fill-opacity:.14;stroke-width:1.5}.read{stroke-dasharray:6 3}
.lane{fill:none;stroke-width:2.5;stroke-linejoin:round}
@media (prefers-color-scheme:dark){text{fill:#e8ecf2}.small{fill:#aab4c2}
.paper{fill:#14181f}.host{fill:#1d232c;stroke:#566171}.memory{fill:#14181f;stroke:#414b59}
.member{fill:#14181f;stroke:#566171}.gpu{fill:#14181f;stroke:#8a96a6}.free{fill:#39424e}
.bar{fill:#2b333e;stroke:#6b7787}.link{stroke:#9aa5b4}.alone{stroke:#4a5563}.hull{fill-opacity:.28}}
";

impl Picture {
    /// The picture as SVG 1.1; equal pictures give equal bytes.
    #[must_use]
    pub fn to_svg(&self) -> String {
        let mut svg = Svg(String::new());
        let (width, height) = (self.width, self.height);
        svg.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<title>{}</title>\n<style type=\"text/css\">{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\n",
            escape(&self.title)
        ));
        // Lines run over hosts and hulls, and below what stands in them.
        let (below, above) = self
            .shapes
            .iter()
            .partition::<Vec<_>, _>(|shape| matches!(shape.kind, Kind::Host | Kind::Hull { .. }));
        below.iter().for_each(|shape| svg.shape(shape));
        self.lines.iter().for_each(|line| svg.line(line));
        above.iter().for_each(|shape| svg.shape(shape));
        svg.put(format_args!("</svg>\n"));
        svg.0
    }
}

struct Svg(String);

impl Svg {
    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(text);
    }

    fn shape(&mut self, shape: &Shape) {
        let grouped = !shape.note.is_empty();
        if grouped {
            self.put(format_args!("<g><title>{}</title>", escape(&shape.note)));
        }
        let plain = match shape.kind {
            Kind::Host => Some(("host", 6)),
            Kind::Memory => Some(("memory", 3)),
            Kind::Member(_) => Some(("member", 3)),
            Kind::Gpu => Some(("gpu", 3)),
            Kind::Bar => Some(("bar", 2)),
            Kind::Cores(None) => Some(("free", 0)),
            Kind::Cores(Some(seat)) => {
                self.rectangle(shape, &format!("fill=\"{}\"", MEMBERS[seat % MEMBERS.len()]), 0);
                None
            }
            Kind::Hull { tier: None, .. } => Some(("alone", 6)),
            Kind::Hull { domain, tier: Some(tier) } => {
                let class = if tier == MultimemTier::PeerRead { "hull read" } else { "hull" };
                let colour = DOMAINS[domain % DOMAINS.len()];
                self.rectangle(shape, &format!("class=\"{class}\" fill=\"{colour}\" stroke=\"{colour}\""), 6);
                None
            }
            Kind::Words => None,
        };
        if let Some((class, radius)) = plain {
            self.rectangle(shape, &format!("class=\"{class}\""), radius);
        }
        if let Kind::Member(seat) = shape.kind {
            let (x, y, height) = (shape.area.x, shape.area.y, shape.area.height);
            let colour = MEMBERS[seat % MEMBERS.len()];
            self.put(format_args!(
                "<rect x=\"{x}\" y=\"{y}\" width=\"5\" height=\"{height}\" fill=\"{colour}\"/>"
            ));
        }
        shape.labels.iter().for_each(|label| self.label(label));
        self.put(format_args!("{}\n", if grouped { "</g>" } else { "" }));
    }

    fn rectangle(&mut self, shape: &Shape, look: &str, radius: u32) {
        let area = &shape.area;
        self.put(format_args!(
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{radius}\" {look}/>",
            area.x, area.y, area.width, area.height
        ));
    }

    fn label(&mut self, label: &Label) {
        let class = match label.weight {
            Weight::Title => "title",
            Weight::Name => "name",
            Weight::Plain => "plain",
            Weight::Small => "small",
        };
        let text = escape(&label.text);
        self.put(format_args!("<text class=\"{class}\" x=\"{}\" y=\"{}\">{text}</text>", label.x, label.y));
    }

    fn line(&mut self, line: &Line) {
        let look = match line.kind {
            LineKind::Link => "class=\"link\"".to_owned(),
            LineKind::Lane(domain) => {
                format!("class=\"lane\" stroke=\"{}\"", DOMAINS[domain % DOMAINS.len()])
            }
        };
        let points = line.points.iter().map(|(x, y)| format!("{x},{y}")).collect::<Vec<_>>().join(" ");
        self.put(format_args!("<polyline {look} points=\"{points}\"/>"));
        line.label.iter().for_each(|label| self.label(label));
        self.put(format_args!("\n"));
    }
}

/// A text as XML may hold it: signs of markup are named, and what XML forbids becomes the replacement character.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\u{0}'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push(char::REPLACEMENT_CHARACTER),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        assert_eq!(escape("a<b>&\"c'\u{1}\n"), "a&lt;b&gt;&amp;&quot;c&#39;\u{fffd} ");
    }
}
