//! Pages with commands for two machines, run as they stand.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nearpath_testkit::lab::{LabNode, LinkConditions, NetworkLab};
use nearpath_testkit::{eventually_blocking, need_root, program, skip};
use serde_json::Value;

use crate::bookinfo;

const PAGE: &str = include_str!("../../../docs/guide/two-machines.md");
/// Programs that the pages use, from Debian.
const PROGRAMS: [&str; 5] = ["rsync", "curl", "unshare", "nsenter", "ip"];

/// Runs a command with its own `/etc`, `/var/lib`, `/srv` and `/root`, so the page changes nothing of this
/// machine. As rsync's remote shell it enters the other one, from the mounts of the test's process.
const ENTER: &str = r#"#!/bin/sh
if [ "$1" = 10.0.0.2 ]; then
  shift
  exec nsenter --mount="/proc/$TEST_PROCESS/ns/mnt" "$0" "$OTHER_MACHINE" "$@"
fi
export root="$1"
shift
exec unshare --mount --propagation private sh -euc '
  # Each mount empties its work folder first, so commands that start together need one each.
  work="$(mktemp -d "$root/work.XXXXXX")"
  mkdir "$work/etc" "$work/lib"
  mount -t overlay overlay -o "lowerdir=/etc,upperdir=$root/etc,workdir=$work/etc" /etc
  mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$root/lib,workdir=$work/lib" /var/lib
  mkdir -p /var/lib/nearpath
  mount --bind "$root/data" /var/lib/nearpath
  mount --bind "$root/srv" /srv
  mount --bind "$root/root" /root
  cd /root
  exec "$@"' sh "$@"
"#;

/// A block of the page.
#[derive(Debug, PartialEq)]
enum PageBlock<'a> {
    /// Commands, and the machine that runs them.
    Commands(char, &'a str),
    /// Output of the commands before it.
    Output(&'a str),
}

fn blocks_of(page: &str) -> Vec<PageBlock<'_>> {
    let block = |(kind, text): (&str, _)| match kind {
        "sh" => {
            let machine = str::strip_prefix(text, "# on ").unwrap().chars().next();
            PageBlock::Commands(machine.unwrap(), text)
        }
        _ => PageBlock::Output(text),
    };
    fenced_blocks(page).map(block).collect()
}

/// Kinds and contents of a page's blocks.
pub(crate) fn fenced_blocks(page: &str) -> impl Iterator<Item = (&str, &str)> {
    // Text and blocks alternate.
    let blocks = page.split("```").skip(1).step_by(2);
    blocks.map(|block| block.split_once('\n').unwrap())
}

struct PageMachine {
    node: LabNode,
    root: PathBuf,
}

impl PageMachine {
    fn new(node: LabNode, root: PathBuf, address: &str) -> Self {
        for name in ["etc", "lib", "data", "srv", "root"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        let mut assign = Command::new("ip");
        assign.args(["address", "add", address, "dev", "link0"]);
        assert!(node.run_program(&mut assign).unwrap().status.success());
        Self { node, root }
    }

    fn command(&self, enter: &Path, other: &Path, text: &str) -> Command {
        let programs = program("nearpath").parent().unwrap().to_owned();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(enter);
        command
            .arg(&self.root)
            .args(["bash", "-euc", text])
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("HOME", "/root")
            .env("OTHER_MACHINE", other)
            .env("TEST_PROCESS", std::process::id().to_string())
            .env("RSYNC_RSH", enter);
        command
    }
}

/// Both machines, and the script that enters them.
struct PageMachines {
    machines: [PageMachine; 2],
    enter: PathBuf,
    _lab: NetworkLab,
    _folder: tempfile::TempDir,
}

impl PageMachines {
    fn new() -> Self {
        let mut lab = NetworkLab::new().unwrap();
        let [a, b] = ["a", "b"].map(|name| lab.add_node(name).unwrap());
        lab.connect_nodes(&a, &b, &LinkConditions::plain()).unwrap();
        let folder = tempfile::Builder::new()
            .prefix("nearpath-page-")
            .tempdir_in("/opt") // not in `/tmp`, which functions have for themselves
            .unwrap();
        let enter = folder.path().join("enter");
        fs::write(&enter, ENTER).unwrap();
        fs::set_permissions(&enter, fs::Permissions::from_mode(0o755)).unwrap();
        let machines = [
            PageMachine::new(a, folder.path().join("a"), "10.0.0.1/24"),
            PageMachine::new(b, folder.path().join("b"), "10.0.0.2/24"),
        ];
        Self {
            machines,
            enter,
            _lab: lab,
            _folder: folder,
        }
    }

    fn command(&self, machine: char, text: &str) -> (&LabNode, Command) {
        let at = usize::from(machine == 'b');
        let command = self.machines[at].command(&self.enter, &self.machines[1].root, text);
        (&self.machines[at].node, command)
    }

    fn spawn(&self, machine: char, text: &str) -> Child {
        let (node, mut command) = self.command(machine, text);
        node.spawn(&mut command).unwrap()
    }

    fn run(&self, machine: char, text: &str) -> Output {
        let (node, mut command) = self.command(machine, text);
        node.run_program(&mut command).unwrap()
    }

    /// Runs commands until they print what the page shows.
    fn run_until(&self, machine: char, text: &str, expected: &str) {
        eventually_blocking(&format!("{text} prints {expected}"), || {
            String::from_utf8_lossy(&self.run(machine, text).stdout) == expected
        });
    }

    /// Runs all blocks, and returns the nodes, which go on.
    fn run_page(&self, page: &str) -> Vec<Child> {
        let (blocks, mut nodes, mut outputs) = (blocks_of(page), Vec::new(), 0);
        for (at, block) in blocks.iter().enumerate() {
            let PageBlock::Commands(machine, text) = *block else {
                continue;
            };
            match blocks.get(at + 1) {
                // It serves until SIGTERM, so its end is not waited for.
                _ if text.contains("\nnearpath node ") => nodes.push(self.spawn(machine, text)),
                Some(PageBlock::Output(expected)) => {
                    self.run_until(machine, text, expected);
                    outputs += 1;
                }
                _ => {
                    let output = self.run(machine, text);
                    assert!(output.status.success(), "{text}: {output:?}");
                }
            }
        }
        assert!(nodes.len() == 2 && outputs > 0, "the page has changed");
        nodes
    }
}

fn end_nodes(nodes: Vec<Child>) {
    for mut node in nodes {
        let pid = rustix::process::Pid::from_child(&node);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(node.wait().unwrap().success());
    }
}

/// Returns a program that the pages use and that is missing.
fn missing_program() -> Option<&'static str> {
    let is_missing = |name: &&str| {
        let found = Command::new("sh")
            .args(["-c", &format!("command -v {name}")])
            .stdout(Stdio::null())
            .status();
        !found.unwrap().success()
    };
    PROGRAMS.into_iter().find(is_missing)
}

#[test]
fn the_page_works_as_it_stands() {
    need_root!();
    if let Some(name) = missing_program() {
        skip!("{name} is missing: make setup");
    }
    let page = PageMachines::new();
    end_nodes(page.run_page(PAGE));
}

/// The second half of the page of examples/bookinfo.
#[test]
fn the_page_of_bookinfo_works_as_it_stands() {
    need_root!();
    if let Some(name) = missing_program() {
        skip!("{name} is missing: make setup");
    }
    let page = PageMachines::new();
    // Commands of a page start in the home folder of `root`.
    if let Err(why) = bookinfo::build_example(&page.machines[0].root.join("root")) {
        skip!("{why}");
    }
    let (_, commands) = bookinfo::page_parts();
    let nodes = page.run_page(commands);
    let paths = page.run('a', "nearpath paths details --json").stdout;
    let paths: Value = serde_json::from_slice(&paths).unwrap();
    let is_across = |row: &Value| {
        let instance = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        row["caller"] == "productpage.openfaas-fn"
            && instance("callerInstance").starts_with("a/")
            && instance("calleeInstance").starts_with("b/")
    };
    assert!(paths.as_array().unwrap().iter().any(is_across), "{paths}");
    end_nodes(nodes);
}
