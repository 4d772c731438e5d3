//! A domain on huge pages, and without them when there are too few. Reserves some, and gives them
//! back.

use std::fs;
use std::sync::{Mutex, PoisonError};

use super::node::{DeliveryMode, TestNode, function, knows};
use nearpath_domain::node_side::{DomainHandle, DomainSettings, PageKind, SharedStats};
use nearpath_domain::{CallDestination, CallRequest, CallResponse};

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

fn number(file: &str) -> u64 {
    fs::read_to_string(file)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// The machine has one reserve: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Huge pages of this test's own.
struct HugePageReserve(u64);

impl HugePageReserve {
    /// So many more; `None` where the machine gives none.
    fn more(pages: u64) -> Option<Self> {
        let before = number(RESERVED);
        fs::write(RESERVED, (before + pages).to_string()).ok()?;
        let reserve = Self(before);
        (number(RESERVED) == before + pages).then_some(reserve)
    }
}

impl Drop for HugePageReserve {
    fn drop(&mut self) {
        let _ = fs::write(RESERVED, self.0.to_string());
    }
}

/// Answers go through memory, whatever it is made of.
fn call(stats: &SharedStats, settings: DomainSettings) -> TestNode {
    let node = TestNode::started(|| {
        DomainHandle::start_with(
            DomainSettings {
                pages: PageKind::HugeIfAvailable,
                ..settings
            },
            stats,
        )
    });
    node.edges(&[("front", "back")]);
    drop(node.serve(2, "back", |_, incoming| {
        CallResponse::ok(incoming.body.clone())
    }));
    let mut front = node.caller(1, "front");
    knows(&mut front, "back");
    for size in [1, 4096, 900_000] {
        let request = CallRequest {
            body: vec![7; size].into(),
            ..CallRequest::default()
        };
        assert_eq!(
            front
                .call(CallDestination::Function(&function("back")), &request)
                .unwrap()
                .body
                .len(),
            size
        );
    }
    node
}

pub(crate) fn huge_pages_are_used_when_available(_: DeliveryMode) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let stats = SharedStats::default();
    let mut large = DomainSettings::named("large");
    // Never enough for these
    large.classes.last_mut().unwrap().count = 2 * (number(FREE) as u32 + 64);
    let node = call(&stats, large);
    let holdings = stats.pool_usage().unwrap();
    assert_eq!(
        (holdings.page_bytes, holdings.lacks_huge_pages),
        (4096, true)
    );
    node.stop();
    let Some(_reserve) = HugePageReserve::more(32) else {
        nearpath_testkit::skip!("this machine reserves no huge pages for us (vm.nr_hugepages)");
    };
    let free = number(FREE);
    let node = call(&stats, DomainSettings::named("small enough"));
    let holdings = stats.pool_usage().unwrap();
    assert_eq!(
        (holdings.page_bytes, holdings.lacks_huge_pages),
        (2 << 20, false)
    );
    assert!(number(FREE) < free, "they come from the reserve");
    node.stop();
}
