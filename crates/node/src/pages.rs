//! Page sizes of a chain's memory: chosen when the memory is created, logged when it differs.

use std::fs;

use nearpath_domain::node_side::{DomainSettings, PageKind as Kind, SharedStats};
use nearpath_types::policy::ChainPages;

/// Unused huge pages of 2 MiB: `Documentation/admin-guide/mm/hugetlbpage.rst`.
const FREE_HUGE_PAGES: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Returns the least page size that the functions of a domain ask for. A function that did not ask
/// for huge pages did not agree to their effects.
pub(crate) fn least_pages(requested: impl Iterator<Item = ChainPages>) -> ChainPages {
    requested.min().unwrap_or_default()
}

/// Adds the pages to try to the settings of a domain.
pub(crate) fn with_pages(settings: DomainSettings, wanted: ChainPages) -> DomainSettings {
    let slots: u64 = settings
        .classes
        .iter()
        .map(|class| u64::from(class.size) * u64::from(class.count))
        .sum();
    let pages = match wanted {
        ChainPages::Small => Kind::Small,
        ChainPages::Huge => Kind::HugeIfAvailable,
        ChainPages::Auto if free_huge_pages() > slots.div_ceil(HUGE_PAGE_BYTES) => {
            Kind::HugeIfAvailable
        } // one more for the header before the slots
        ChainPages::Auto => Kind::Small,
    };
    DomainSettings { pages, ..settings }
}

fn free_huge_pages() -> u64 {
    fs::read_to_string(FREE_HUGE_PAGES)
        .ok()
        // Kernels without huge pages have no such file: then there are none.
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Returns whether the pages are huge, and logs missing ones that were required.
pub(crate) fn has_huge_pages(domain: &str, wanted: ChainPages, ledger: &SharedStats) -> bool {
    let Some(holdings) = ledger.pool_usage() else {
        return false;
    };
    let missed = holdings.lacks_huge_pages;
    if wanted == ChainPages::Huge && missed {
        let todo = "reserve some (vm.nr_hugepages) and deploy the chain anew";
        tracing::warn!(
            domain,
            free = free_huge_pages(),
            "too few huge pages: the chain's memory has small ones; {todo}"
        );
    }
    holdings.page_bytes > 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_need_every_functions_consent() {
        use ChainPages::{Auto, Huge, Small};
        let least = |all: &[ChainPages]| least_pages(all.iter().copied());
        assert_eq!(least(&[Huge, Auto]), Auto);
        assert_eq!(least(&[Huge]), Huge);
        assert_eq!(least(&[Auto, Small]), Small);
    }

    #[test]
    fn small_pages_stay_small() {
        assert_eq!(
            with_pages(DomainSettings::named("x"), ChainPages::Small).pages,
            Kind::Small
        );
        assert_eq!(
            with_pages(DomainSettings::named("x"), ChainPages::Huge).pages,
            Kind::HugeIfAvailable
        );
    }
}
