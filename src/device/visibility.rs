//! Which GPUs of a machine a process sees, and in which order, as the vendors' variables decide it.
//!
//! Pure: variables and identities in, positions out. Each rule is the vendor's own, odd ones included.

/// One NVIDIA GPU as `CUDA_VISIBLE_DEVICES` may name it, in the order of NVML's indexes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Card {
    /// `GPU-` and its identity.
    pub(super) uuid: String,
    /// What orders cards by speed: more is faster.
    pub(super) speed: (u32, u32, u32),
    /// Its MIG instances; `None` unless MIG is on.
    pub(super) instances: Option<Vec<Instance>>,
}

/// One MIG instance as `CUDA_VISIBLE_DEVICES` may name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Instance {
    /// `MIG-` and its identity.
    pub(super) uuid: String,
    /// The numbers of its GPU instance and compute instance.
    pub(super) numbers: (u32, u32),
}

/// A visible device: a card's position, and the position of one of its instances where MIG is on.
pub(super) type Seat = (usize, Option<usize>);

/// What a process sees of these cards: CUDA's order, then `CUDA_VISIBLE_DEVICES`.
///
/// A process sees either whole cards, or one MIG instance and nothing else.
pub(super) fn cuda(cards: &[Card], visible: Option<&str>, order: Option<&str>) -> Vec<Seat> {
    let mut positions = (0..cards.len()).collect::<Vec<_>>();
    // Without a wish the fastest come first; the driver takes any other word for no wish.
    if order != Some("PCI_BUS_ID") {
        positions.sort_by_key(|position| std::cmp::Reverse(cards[*position].speed));
    }
    // A card with MIG on and no instance cannot be used, and counts for nobody.
    positions.retain(|position| cards[*position].instances.as_ref().is_none_or(|own| !own.is_empty()));
    let seat = |position: usize| (position, cards[position].instances.as_ref().map(|_| 0));
    let seats = match visible.map(str::trim) {
        None => positions.iter().map(|position| seat(*position)).collect(),
        Some("") => Vec::new(),
        Some(list) if list.starts_with("MIG-") => named(list, "MIG-", |name| instance(cards, name)),
        Some(list) if list.starts_with("GPU-") => named(list, "GPU-", |name| {
            only(positions.iter().copied().filter(|position| cards[*position].uuid.starts_with(name)))
                .map(seat)
        }),
        Some(list) => numbered(list, positions.len()).into_iter().map(|at| seat(positions[at])).collect(),
    };
    match seats.iter().find(|(_, instance)| instance.is_some()) {
        Some(first) => vec![*first],
        None => seats,
    }
}

/// The one element; `None` for none, and for several.
fn only<T>(mut found: impl Iterator<Item = T>) -> Option<T> {
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// The instance with this identity or unique prefix of one, or with the older form `MIG-GPU-<uuid>/<gi>/<ci>`.
fn instance(cards: &[Card], name: &str) -> Option<Seat> {
    if let Some(rest) = name.strip_prefix("MIG-GPU-") {
        let mut parts = rest.split('/');
        let uuid = format!("GPU-{}", parts.next()?);
        let numbers = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let card = cards.iter().position(|card| card.uuid == uuid)?;
        let own = cards[card].instances.as_ref()?.iter().position(|own| own.numbers == numbers)?;
        return Some((card, Some(own)));
    }
    let all = cards.iter().enumerate().flat_map(|(card, found)| {
        let instances = found.instances.iter().flatten().enumerate();
        instances.filter(|(_, own)| own.uuid.starts_with(name)).map(move |(own, _)| (card, Some(own)))
    });
    only(all)
}

/// Names of one kind. Another kind, or a name of nothing or of several, ends the list; a device named twice empties it.
fn named(list: &str, prefix: &str, find: impl Fn(&str) -> Option<Seat>) -> Vec<Seat> {
    let mut seats = Vec::new();
    for name in list.split(',').map(str::trim) {
        let Some(seat) = name.starts_with(prefix).then(|| find(name)).flatten() else { break };
        if seats.contains(&seat) {
            return Vec::new();
        }
        seats.push(seat);
    }
    seats
}

/// Numbers below `count`. One that is not ends the list, as does what is no number; one that comes twice empties it.
fn numbered(list: &str, count: usize) -> Vec<usize> {
    let mut found = Vec::new();
    for text in list.split(',') {
        // The driver reads as strtoul does: what follows the digits is passed over.
        let Some(number) = leading_number(text.trim()).filter(|number| *number < count) else { break };
        if found.contains(&number) {
            return Vec::new();
        }
        found.push(number);
    }
    found
}

/// The number that a text starts with, `None` without one or below 0.
fn leading_number(text: &str) -> Option<usize> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let end = digits.find(|character: char| !character.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// Which of these AMD GPUs a process sees: `ROCR_VISIBLE_DEVICES`, then `HIP_VISIBLE_DEVICES` over what that left, and
/// where this one is not set `CUDA_VISIBLE_DEVICES`.
///
/// Identities are `GPU-` and sixteen hexadecimal digits, or empty where the hardware has none; the answer is positions.
pub(super) fn hip(
    identities: &[String],
    rocr: Option<&str>,
    hip: Option<&str>,
    cuda: Option<&str>,
) -> Vec<usize> {
    let left = match rocr {
        None => (0..identities.len()).collect(),
        Some(list) => rocr_list(identities, list),
    };
    // HIP takes an empty variable for one that is not set.
    let list = hip.filter(|list| !list.is_empty()).or(cuda.filter(|list| !list.is_empty()));
    match list {
        None => left,
        Some(list) => hip_list(identities, &left, list),
    }
}

/// An invalid or repeated device ends the list; an empty list is no device.
fn rocr_list(identities: &[String], list: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for text in list.split(',').map(|text| text.trim().to_ascii_uppercase()) {
        let position = if text.starts_with('G') {
            // Five characters are the shortest and twenty the longest that ROCm takes for an identity.
            let fits = (5..=20).contains(&text.len());
            let same = |own: &String| fits && own.to_ascii_uppercase().starts_with(&text);
            only((0..identities.len()).filter(|position| same(&identities[*position])))
        } else {
            whole_number(&text).filter(|number| *number < identities.len())
        };
        match position {
            Some(position) if !found.contains(&position) => found.push(position),
            _ => break,
        }
    }
    found
}

/// A number as strtol reads it with base 0: decimal, `0x` hexadecimal or `0` octal, and nothing after it.
fn whole_number(text: &str) -> Option<usize> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let (digits, base) = match (digits.strip_prefix("0X"), digits.strip_prefix('0')) {
        (Some(hexadecimal), _) => (hexadecimal, 16),
        (None, Some(octal)) if !octal.is_empty() => (octal, 8),
        _ => (digits, 10),
    };
    let valid = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    valid.then(|| usize::from_str_radix(digits, base).ok()).flatten()
}

/// An invalid device ends the list; a repeated one is passed over.
fn hip_list(identities: &[String], left: &[usize], list: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let list = list.strip_suffix(',').unwrap_or(list);
    for text in list.split(',') {
        let position = if text.contains("GPU-") {
            left.iter().copied().find(|position| identities[*position].contains(text))
        } else {
            // Only the shortest form of a number counts: no sign, no space, no leading zero.
            let number = text.parse::<usize>().ok().filter(|number| number.to_string() == text);
            number.and_then(|number| left.get(number).copied())
        };
        match position {
            Some(position) if found.contains(&position) => {}
            Some(position) => found.push(position),
            None => break,
        }
    }
    found
}

#[cfg(test)]
mod tests;
