//! End of a lab: nothing remains, however its process ended.

use std::io::{self, Read};
use std::process::{Command, Stdio};

use nearpath_testkit::lab::{LabLink, LabNode, LinkConditions, NetworkLab};
use nearpath_testkit::{eventually_blocking, need_root};

/// A node and its link to another one.
fn small_lab() -> (NetworkLab, LabNode, LabLink) {
    let mut lab = NetworkLab::new().unwrap();
    let (near, far) = (lab.add_node("near").unwrap(), lab.add_node("far").unwrap());
    let lab_link = lab
        .connect_nodes(&near, &far, &LinkConditions::default())
        .unwrap();
    (lab, near, lab_link)
}

#[test]
fn dropping_a_lab_ends_the_programs_in_it() {
    need_root!();
    let (lab, node, lab_link) = small_lab();
    // In a session of its own and without its environment, as a daemon may be.
    let mut command = Command::new("setsid");
    command
        .args(["env", "-i", "sleep", "1000"])
        .stdin(Stdio::null());
    let mut child = node.spawn(&mut command).unwrap();
    let device = lab_link.first_end().device.clone();
    assert!(node.open_devices().unwrap().device_index(&device).is_ok());
    drop(lab);
    assert!(!child.wait().unwrap().success(), "killed, not ended");
    drop(lab_link);
    assert!(
        node.open_devices().unwrap().device_index(&device).is_err(),
        "the device is gone, too"
    );
}

#[test]
fn what_a_killed_run_leaves_is_swept_by_the_next() {
    need_root!();
    let test = std::env::current_exe().unwrap();
    let mut run = Command::new(&test);
    run.args([
        "--exact",
        "lab_cleanup::helper_that_is_killed",
        "--ignored",
        "--nocapture",
    ]);
    let mut run = run.stdout(Stdio::piped()).spawn().unwrap();
    let program = program_of(run.stdout.as_mut().unwrap());
    run.kill().unwrap();
    run.wait().unwrap();
    // From here on any lab on this machine may sweep; the next one of this test does at the latest.
    let mut next = Command::new(&test);
    let next = next
        .args([
            "--exact",
            "lab_cleanup::helper_that_starts_a_lab",
            "--ignored",
        ])
        .output()
        .unwrap();
    assert!(next.status.success());
    eventually_blocking(&format!("process {program} ends"), || !lives(program));
}

/// The pid that the helper prints.
fn program_of(out: &mut impl Read) -> u32 {
    let lines = io::BufRead::lines(io::BufReader::new(out)).map(Result::unwrap);
    let mut found = lines.filter_map(|line| line.split_once("program ")?.1.trim().parse().ok());
    found
        .next()
        .expect("the helper prints the number of its program")
}

fn lives(pid: u32) -> bool {
    // An unreaped process is a zombie: Z after its name in brackets.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|text| {
        text.rsplit_once(')')
            .is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
    })
}

#[test]
#[ignore = "a helper: run by what_a_killed_run_leaves_is_swept_by_the_next"]
fn helper_that_is_killed() {
    let (_lab, node, _lab_link) = small_lab();
    let mut child = node
        .spawn(
            Command::new("sleep")
                .arg("1000")
                .stdin(Stdio::null())
                .stderr(Stdio::null()),
        )
        .unwrap();
    println!("program {}", child.id());
    child.wait().unwrap();
}

#[test]
#[ignore = "a helper: run by what_a_killed_run_leaves_is_swept_by_the_next"]
fn helper_that_starts_a_lab() {
    NetworkLab::new().unwrap();
}
