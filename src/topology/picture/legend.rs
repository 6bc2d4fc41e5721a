//! What the signs of the picture mean, and what is said of the run in words, below the hosts.

use super::super::run::Topology;
use super::super::words::{counted, index_ranges};
use super::{Area, GAP, Kind, Label, LineKind, MARGIN, Picture, Shape, Weight, text_width, wrap};
use crate::vocabulary::MultimemTier;

const SWATCH_WIDTH: u32 = 28;
const SWATCH_HEIGHT: u32 = 14;
const ROW: u32 = 22;
/// How many lines tell of domains.
const DOMAINS_SHOWN: usize = 12;

/// Puts the legend below what is there.
pub(super) fn append(picture: &mut Picture, topology: &Topology) {
    picture.height += 20;
    swatches(picture, topology);
    if picture.lines.iter().any(|line| line.kind == LineKind::Link && line.label.is_some()) {
        words(picture, "A line between GPUs is a direct link; 4× stands for four of them.");
    }
    for text in sentences(topology) {
        words(picture, &text);
    }
}

fn swatches(picture: &mut Picture, topology: &Topology) {
    let mut signs = vec![(Kind::Cores(Some(0)), "cores of a member, in its colour")];
    if picture.shapes.iter().any(|shape| shape.kind == Kind::Cores(None)) {
        signs.push((Kind::Cores(None), "cores that no member takes"));
    }
    let hull = |tier| Kind::Hull { domain: 0, tier };
    let domains = topology.multimem_domains();
    let has = |tier| domains.iter().any(|domain| domain.gpus.len() > 1 && domain.tier == tier);
    if has(MultimemTier::SwitchReduced) {
        signs.push((hull(Some(MultimemTier::SwitchReduced)), "multimem domain that its switch reduces"));
    }
    if has(MultimemTier::PeerRead) {
        signs.push((hull(Some(MultimemTier::PeerRead)), "multimem domain whose GPUs read each other"));
    }
    if domains.iter().any(|domain| domain.gpus.len() == 1) {
        signs.push((hull(None), "GPU alone in its domain"));
    }
    if picture.shapes.iter().any(|shape| shape.kind == Kind::Bar) {
        signs.push((Kind::Bar, "switch, or links between each two"));
    }
    let right = picture.width - MARGIN;
    let (mut x, mut y) = (MARGIN, picture.height);
    for (kind, text) in signs {
        let width = SWATCH_WIDTH + 8 + text_width(text, Weight::Small) + 2 * GAP;
        if x + width > right && x > MARGIN {
            (x, y) = (MARGIN, y + ROW);
        }
        let area = Area { x, y, width: SWATCH_WIDTH, height: SWATCH_HEIGHT };
        picture.add(Shape { kind, area, parent: None, labels: Vec::new(), note: String::new() });
        let area =
            Area { x: x + SWATCH_WIDTH + 8, y, width: width - SWATCH_WIDTH - 8, height: SWATCH_HEIGHT };
        let label = Label { x: area.x, y: y + 11, text: text.to_owned(), weight: Weight::Small };
        picture.add(Shape {
            kind: Kind::Words,
            area,
            parent: None,
            labels: vec![label],
            note: String::new(),
        });
        x += width;
    }
    picture.height = y + ROW + 4;
}

/// One sentence in as many lines as it takes.
fn words(picture: &mut Picture, text: &str) {
    let width = picture.width - 2 * MARGIN;
    let lines = wrap(text, width, Weight::Plain);
    let area = Area { x: MARGIN, y: picture.height, width, height: lines.len() as u32 * 16 };
    let labels = lines.into_iter().enumerate().map(|(at, text)| Label {
        x: MARGIN,
        y: area.y + 12 + 16 * at as u32,
        text,
        weight: Weight::Plain,
    });
    let labels = labels.collect();
    picture.add(Shape { kind: Kind::Words, area, parent: None, labels, note: String::new() });
    picture.height += area.height + 4;
}

fn sentences(topology: &Topology) -> Vec<String> {
    let mut sentences = Vec::new();
    // Neighbouring domains of one kind are told of together.
    let mut kinds = Vec::<(usize, usize)>::new();
    let domains = topology.multimem_domains();
    for (number, domain) in domains.iter().enumerate() {
        let alike = |first: usize| {
            let first = &domains[first];
            first.gpus.len() == domain.gpus.len() && first.tier == domain.tier
        };
        match kinds.last_mut() {
            Some((first, count)) if alike(*first) => *count += 1,
            _ => kinds.push((number, 1)),
        }
    }
    for (first, count) in kinds.iter().take(DOMAINS_SHOWN) {
        let domain = &domains[*first];
        let size = counted(domain.gpus.len(), "GPU");
        sentences.push(if *count == 1 {
            let gpus = index_ranges(&domain.gpus);
            format!("Multimem domain {first}: {size} ({gpus}), {}: {}.", domain.tier, domain.reason)
        } else {
            let same = domains[*first..first + count].iter().all(|other| other.reason == domain.reason);
            let which = if same { String::new() } else { format!(" in domain {first}") };
            let numbers = format!("{first}-{}", first + count - 1);
            format!("Multimem domains {numbers}: {size} each, {}:{which} {}.", domain.tier, domain.reason)
        });
    }
    if kinds.len() > DOMAINS_SHOWN {
        sentences.push(format!("More multimem domains: {}.", domains.len() - kinds[DOMAINS_SHOWN].0));
    }
    if !domains.is_empty() {
        sentences.push(format!("Tier of the run {}: {}.", topology.multimem_tier(), topology.tier_reason()));
    }
    match topology.group_lines() {
        lines if lines.is_empty() => sentences.push("The run has one member, and no group.".to_owned()),
        lines => {
            sentences.push("Groups that members reduce in, narrow to wide:".to_owned());
            sentences.extend(lines);
        }
    }
    sentences
}
