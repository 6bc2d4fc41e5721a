//! Call sites: where in the user's code a call was made, as a small number that is found again in a few nanoseconds.

use std::cell::Cell;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How many sites one process tells apart; the calls of all others have none.
pub(super) const LIMIT: usize = 512;
/// The longest text of a site: the end of a path says more than its beginning.
pub const SITE_BYTES: usize = 120;
/// Twice as many places, so that a search ends soon.
const PLACES: usize = 2 * LIMIT;

/// A place in the user's code; the default is an unknown one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Site(pub(super) u32);

/// One place of the table: a key, 0 for none, and the number of its site.
struct Place {
    key: AtomicU64,
    number: AtomicU32,
}

/// A site in words.
struct Text {
    file: String,
    line: u32,
    /// Both, as messages say them; of long ones the end.
    words: String,
}

impl Text {
    fn new(file: &str, line: u32) -> Self {
        let whole = format!("{file}:{line}").replace(char::is_control, " ");
        let start = whole.ceil_char_boundary(whole.len().saturating_sub(SITE_BYTES));
        Self { file: file.to_owned(), line, words: whole[start..].to_owned() }
    }
}

struct Table {
    places: [Place; PLACES],
    texts: [OnceLock<Text>; LIMIT],
    /// How many sites there are, from 1.
    count: Mutex<u32>,
}

static TABLE: Table = Table {
    places: [const { Place { key: AtomicU64::new(0), number: AtomicU32::new(0) } }; PLACES],
    texts: [const { OnceLock::new() }; LIMIT],
    count: Mutex::new(0),
};

thread_local! {
    /// The site of all calls that this thread makes, where a shim has said it.
    static GIVEN: Cell<Option<Site>> = const { Cell::new(None) };
}

/// Puts the site back that was given before, however the work between ends.
struct Restore(Option<Site>);

impl Drop for Restore {
    fn drop(&mut self) {
        GIVEN.set(self.0);
    }
}

impl Site {
    /// Runs `act`, all of whose calls are made at this site: for shims, whose own code is not the user's.
    pub fn during<R>(self, act: impl FnOnce() -> R) -> R {
        let _restore = Restore(GIVEN.replace(Some(self)));
        act()
    }

    /// Makes this the site of the calls that follow within a [`Site::during`] of this thread.
    pub fn give(self) {
        if GIVEN.get().is_some() {
            GIVEN.set(Some(self));
        }
    }

    /// Where this function's caller, or that of the outermost function marked `track_caller`, was called; the site that
    /// [`Site::during`] has given, where one has.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn caller() -> Self {
        match GIVEN.get() {
            Some(site) => site,
            None => Self::of(Location::caller()),
        }
    }

    /// The site that [`Site::during`] has given to this thread; unknown without one.
    #[inline]
    #[must_use]
    pub fn given() -> Self {
        GIVEN.get().unwrap_or_default()
    }

    /// This site, or where this function's caller was called if it is unknown.
    #[inline]
    #[must_use]
    #[track_caller]
    pub fn or_caller(self) -> Self {
        if super::IS_ON && self == Self::default() { Self::caller() } else { self }
    }

    /// The site of a place in Rust code.
    #[inline]
    #[must_use]
    pub fn of(location: &'static Location<'static>) -> Self {
        // A place of a program has one address for ever.
        let key = std::ptr::from_ref(location).addr() as u64;
        TABLE.find(key).unwrap_or_else(|| TABLE.add(key, location.file(), location.line()))
    }

    /// The site of a line in a file of any language. Fast where the name has the same address each time.
    #[inline]
    #[must_use]
    pub fn named(file: &str, line: u32) -> Self {
        let key = (file.as_ptr().addr() as u64) << 20 ^ u64::from(line) << 1 | 1;
        match TABLE.find(key) {
            // Another name may lie where one lay before.
            Some(site) if TABLE.is_text(site, file, line) => site,
            _ => TABLE.add(key, file, line),
        }
    }

    /// The file and the line; `None` for an unknown site.
    #[must_use]
    pub fn place(self) -> Option<(&'static str, u32)> {
        let index = (self.0 as usize).checked_sub(1)?;
        TABLE.texts.get(index)?.get().map(|text| (text.file.as_str(), text.line))
    }

    /// The site as `file:line`, at most [`SITE_BYTES`] long; empty for an unknown one.
    #[must_use]
    pub fn text(self) -> &'static str {
        let index = (self.0 as usize).wrapping_sub(1);
        TABLE.texts.get(index).and_then(OnceLock::get).map_or("", |text| text.words.as_str())
    }

    /// Its number in this process, 0 for an unknown one.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl std::fmt::Display for Site {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.text())
    }
}

impl Table {
    #[inline]
    fn places(&self, key: u64) -> impl Iterator<Item = &Place> {
        let start = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
        (0..PLACES).map(move |step| &self.places[(start + step) % PLACES])
    }

    #[inline]
    fn find(&self, key: u64) -> Option<Site> {
        for place in self.places(key) {
            match place.key.load(Ordering::Acquire) {
                0 => return None,
                found if found == key => return Some(Site(place.number.load(Ordering::Relaxed))),
                _ => {}
            }
        }
        None
    }

    fn is_text(&self, site: Site, file: &str, line: u32) -> bool {
        site.place().is_some_and(|(known, at)| at == line && known == file)
    }

    #[cold]
    fn add(&self, key: u64, file: &str, line: u32) -> Site {
        let mut count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        let known = (1..=*count).map(Site).find(|site| self.is_text(*site, file, line));
        let site = known.unwrap_or_else(|| {
            if *count as usize >= LIMIT - 1 {
                return Site::default();
            }
            *count += 1;
            let site = Site(*count);
            let _ = self.texts[*count as usize - 1].set(Text::new(file, line));
            site
        });
        let free = |place: &&Place| [0, key].contains(&place.key.load(Ordering::Relaxed));
        // A table that is full forgets no site: it finds the further ones by their text.
        if let Some(place) = self.places(key).take(LIMIT).find(free) {
            place.number.store(site.0, Ordering::Relaxed);
            place.key.store(key, Ordering::Release);
        }
        site
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_found_again_and_keeps_its_text() {
        let sites = [Site::caller(), Site::caller()];
        assert_ne!(sites[0], Site::default());
        assert!(sites[0].to_string().ends_with(&format!("recorder/site.rs:{}", line!() - 2)), "{}", sites[0]);
        let one = Site::named("train.py", 7);
        assert_eq!((one, one.to_string().as_str()), (Site::named("train.py", 7), "train.py:7"));
        assert_eq!(one, Site::named(&String::from("train.py"), 7), "another address, the same text");
        assert_ne!(one, Site::named("train.py", 8));
        let mut name = String::from("one.py");
        let one = Site::named(&name, 1);
        name.replace_range(.., "two.py");
        let two = Site::named(&name, 1);
        assert_eq!((one.to_string(), two.to_string()), ("one.py:1".to_owned(), "two.py:1".to_owned()));
        assert_eq!(Site::default().to_string(), "");
        let given = one.during(|| (Site::caller(), two.during(Site::caller), Site::caller()));
        assert_eq!((given, Site::caller() == one), ((one, two, one), false));
        one.give();
        let given = Site::default().during(|| {
            one.give();
            Site::caller()
        });
        assert_eq!((given, Site::given()), (one, Site::default()), "outside of `during` nothing is given");
    }
}
