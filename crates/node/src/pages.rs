//! Which pages a chain's memory is made of: decided when the memory is made, told when it came otherwise.

use std::collections::BTreeMap;
use std::fs;

use nearpath_domain::hub::{Ledger, Pages as Kind, Settings};
use nearpath_types::policy::Pages;

/// Huge pages of 2 MiB that nobody uses: `Documentation/admin-guide/mm/hugetlbpage.rst`.
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
const HUGE: u64 = 2 << 20;

/// What every function of a domain agrees to: the least of what they ask for. One that did not ask for huge pages did not
/// agree to what they mean.
pub(crate) fn by_domain<'a>(asked: impl Iterator<Item = (&'a str, Pages)>) -> BTreeMap<String, Pages> {
    let mut all: BTreeMap<String, Pages> = BTreeMap::new();
    for (domain, pages) in asked {
        let least = all.entry(domain.to_owned()).or_insert(pages);
        *least = pages.min(*least);
    }
    all
}

/// Settings with the pages that a domain is to try.
pub(crate) fn chosen(settings: Settings, wanted: Pages) -> Settings {
    let slots: u64 = settings.sizes.iter().map(|class| u64::from(class.size) * u64::from(class.count)).sum();
    let pages = match wanted {
        Pages::Small => Kind::Small,
        Pages::Huge => Kind::HugeIfThere,
        Pages::Auto if free() > slots.div_ceil(HUGE) => Kind::HugeIfThere, // one more for what lies before the slots
        Pages::Auto => Kind::Small,
    };
    Settings { pages, ..settings }
}

fn free() -> u64 {
    fs::read_to_string(FREE).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Whether the pages are huge; says so where that is not what was asked for.
pub(crate) fn are_huge(domain: &str, wanted: Pages, ledger: &Ledger) -> bool {
    let Some(holdings) = ledger.holdings() else { return false };
    let missed = holdings.missed_huge;
    if wanted == Pages::Huge && missed {
        let todo = "reserve some (vm.nr_hugepages) and deploy the chain anew";
        tracing::warn!(domain, free = free(), "too few huge pages: the chain's memory has small ones; {todo}");
    }
    holdings.page > 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_need_everybodys_word() {
        let asked =
            [("a", Pages::Huge), ("b", Pages::Huge), ("a", Pages::Auto), ("c", Pages::Auto), ("c", Pages::Small)];
        let expected = [("a", Pages::Auto), ("b", Pages::Huge), ("c", Pages::Small)];
        assert_eq!(by_domain(asked.into_iter()), expected.map(|(name, pages)| (name.to_owned(), pages)).into());
    }

    #[test]
    fn small_ones_are_not_tried_huge() {
        assert_eq!(chosen(Settings::named("x"), Pages::Small).pages, Kind::Small);
        assert_eq!(chosen(Settings::named("x"), Pages::Huge).pages, Kind::HugeIfThere);
    }
}
