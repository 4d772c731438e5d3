//! A domain on huge pages, and without them when there are too few. Reserves some, and gives them back.

use std::fs;
use std::sync::{Mutex, PoisonError};

use super::node::{Mode, Node, function, knows};
use nearpath_domain::hub::{Hub, Ledger, Pages, Settings};
use nearpath_domain::{Answer, Request, To};

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

fn number(file: &str) -> u64 {
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// The machine has one reserve: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Huge pages of this test's own.
struct Reserve(u64);

impl Reserve {
    /// So many more; `None` where the machine gives none.
    fn more(pages: u64) -> Option<Self> {
        let before = number(RESERVED);
        fs::write(RESERVED, (before + pages).to_string()).ok()?;
        let reserve = Self(before);
        (number(RESERVED) == before + pages).then_some(reserve)
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let _ = fs::write(RESERVED, self.0.to_string());
    }
}

/// Answers go through memory, whatever it is made of.
fn call(ledger: &Ledger, settings: Settings) -> Node {
    let node = Node::started(|| Hub::start_with(Settings { pages: Pages::HugeIfThere, ..settings }, ledger));
    node.edges(&[("front", "back")]);
    drop(node.serve(2, "back", |_, incoming| Answer::ok(incoming.body.clone())));
    let mut front = node.caller(1, "front");
    knows(&mut front, "back");
    for size in [1, 4096, 900_000] {
        let request = Request { body: vec![7; size].into(), ..Request::default() };
        assert_eq!(front.call(To::Function(&function("back")), &request).unwrap().body.len(), size);
    }
    node
}

pub(crate) fn huge_pages_are_taken_where_they_are_and_done_without_where_not(_: Mode) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let ledger = Ledger::default();
    let mut large = Settings::named("large");
    large.sizes.last_mut().unwrap().count = 2 * (number(FREE) as u32 + 64); // never enough for these
    let node = call(&ledger, large);
    let holdings = ledger.holdings().unwrap();
    assert_eq!((holdings.page, holdings.missed_huge), (4096, true));
    node.stop();
    let Some(_reserve) = Reserve::more(32) else {
        nearpath_testkit::skip!("this machine reserves no huge pages for us (vm.nr_hugepages)");
    };
    let free = number(FREE);
    let node = call(&ledger, Settings::named("small enough"));
    let holdings = ledger.holdings().unwrap();
    assert_eq!((holdings.page, holdings.missed_huge), (2 << 20, false));
    assert!(number(FREE) < free, "they come from the reserve");
    node.stop();
}
