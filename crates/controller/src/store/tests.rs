use nearpath_types::FunctionSpec;
use nearpath_types::policy::CALLS;
use proptest::prelude::*;

use super::*;
use crate::model::tests::{any_command, test_spec};
use crate::model::{ControllerCommand, decide_command};

/// Runs commands against model and store, with a few per commit, and reads the store back.
fn write_and_reload(commands: Vec<Vec<ControllerCommand>>) -> (ControllerModel, ControllerModel) {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, mut model) =
        ControllerStore::open(DataDir::claim(folder.path()).unwrap()).unwrap();
    for group in commands {
        let mut changes = Vec::new();
        for command in group {
            if let Ok(decision) =
                decide_command(&model, &command, std::time::SystemTime::UNIX_EPOCH)
            {
                changes.extend(decision.changes.clone());
                decision
                    .changes
                    .into_iter()
                    .for_each(|change| model.apply_change(change));
            }
        }
        store.commit_changes(&changes).unwrap();
    }
    drop(store);
    // Only read: an opened store would complete or release addresses that were not written.
    let read = read_database(&folder.path().join(DATABASE_FILE)).unwrap();
    (model, read)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn written_models_are_read_back(commands in prop::collection::vec(prop::collection::vec(any_command(), 1..5), 0..12)) {
        let (model, read) = write_and_reload(commands);
        prop_assert_eq!(model, read);
    }
}

fn open_in(folder: &Path) -> (ControllerStore, ControllerModel) {
    ControllerStore::open(DataDir::claim(folder).unwrap()).unwrap()
}

fn run(store: &mut ControllerStore, model: &mut ControllerModel, command: ControllerCommand) {
    let now = std::time::SystemTime::UNIX_EPOCH;
    let changes = decide_command(model, &command, now).unwrap().changes;
    store.commit_changes(&changes).unwrap();
    changes
        .into_iter()
        .for_each(|change| model.apply_change(change));
}

fn address_of(model: &ControllerModel, name: &str) -> String {
    let number = model.address_number(&name.parse().unwrap());
    number.unwrap().ipv4().to_string()
}

fn caller_spec(name: &str, calls: &str) -> FunctionSpec {
    let mut spec = test_spec(name);
    spec.annotations.insert(CALLS.into(), calls.into());
    spec
}

#[test]
fn a_callee_keeps_its_address_over_restarts_until_it_is_not_declared() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, mut model) = open_in(folder.path());
    let caller = ControllerCommand::Deploy(caller_spec("web", "cart"));
    run(&mut store, &mut model, caller);
    drop(store);
    let (mut store, mut read) = open_in(folder.path());
    assert_eq!(read, model);
    let callee = ControllerCommand::Deploy(test_spec("cart"));
    run(&mut store, &mut read, callee);
    assert_eq!(address_of(&read, "cart"), "10.60.0.2");
    for name in ["cart", "web"] {
        let remove = ControllerCommand::Remove(name.parse().unwrap());
        run(&mut store, &mut read, remove);
    }
    drop(store);
    let (_store, last) = open_in(folder.path());
    assert_eq!(last, read);
    assert_eq!(last.address_number(&"cart".parse().unwrap()), None);
}

#[test]
fn a_released_address_is_not_reused_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, mut model) = open_in(folder.path());
    let deploy = |name| ControllerCommand::Deploy(test_spec(name));
    run(&mut store, &mut model, deploy("a"));
    run(&mut store, &mut model, deploy("b"));
    let remove = ControllerCommand::Remove("b".parse().unwrap());
    run(&mut store, &mut model, remove);
    drop(store);
    let (mut store, mut model) = open_in(folder.path());
    assert_eq!(address_of(&model, "a"), "10.60.0.2");
    run(&mut store, &mut model, deploy("b"));
    assert_eq!(address_of(&model, "b"), "10.60.0.4");
}

#[test]
fn each_data_directory_has_a_prefix_of_its_own() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let prefix = |folder: &tempfile::TempDir| open_in(folder.path()).1.address_prefix.unwrap();
    let [first, second] = [&folders[0], &folders[1]].map(prefix);
    assert_ne!(first, second);
    assert_eq!(prefix(&folders[0]), first, "a restart keeps it");
}

/// Makes the database one of an older version, with two functions, of which one declares a callee.
fn write_older_database(folder: &Path) {
    let (mut store, mut model) = open_in(folder);
    for spec in [test_spec("c"), caller_spec("a", "b")] {
        run(&mut store, &mut model, ControllerCommand::Deploy(spec));
    }
    store
        .db
        .execute_batch(
            "DROP TABLE network; DROP TABLE address; DELETE FROM counter WHERE key <> 'revision'; PRAGMA user_version = 2",
        )
        .unwrap();
}

#[test]
fn names_of_an_older_database_get_lasting_addresses() {
    let folder = tempfile::tempdir().unwrap();
    write_older_database(folder.path());
    let (store, model) = open_in(folder.path());
    assert_eq!(address_of(&model, "a"), "10.60.0.2");
    assert_eq!(address_of(&model, "b"), "10.60.0.3");
    assert_eq!(address_of(&model, "c"), "10.60.0.4");
    assert!(model.address_prefix.is_some());
    drop(store);
    let (mut store, mut read) = open_in(folder.path());
    assert_eq!(read, model);
    let remove = ControllerCommand::Remove("c".parse().unwrap());
    run(&mut store, &mut read, remove);
    run(
        &mut store,
        &mut read,
        ControllerCommand::Deploy(test_spec("d")),
    );
    assert_eq!(address_of(&read, "d"), "10.60.0.5");
}

#[test]
fn the_log_is_checkpointed_before_it_grows_large() {
    let folder = tempfile::tempdir().unwrap();
    let (mut store, _) = ControllerStore::open(DataDir::claim(folder.path()).unwrap()).unwrap();
    let value = crate::model::SecretValue(vec![7; 600_000].into());
    let mut largest = 0;
    for number in 0..20 {
        let id = format!("openfaas-fn/s{number}").parse().unwrap();
        store
            .commit_changes(&[ModelChange::PutSecret(id, value.clone())])
            .unwrap();
        largest = largest.max(store.log_bytes());
    }
    assert!(
        (1..2 * CHECKPOINT_BYTES).contains(&largest),
        "{largest} bytes"
    );
    store.checkpoint_log();
    assert!(!store.needs_checkpoint());
}

fn mode_after_claim(folder: &std::path::Path, mode: u32) -> Result<u32, String> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
    let claimed = DataDir::claim(folder).map_err(|error| error.to_string())?;
    Ok(claimed.path().metadata().unwrap().permissions().mode() & 0o7777)
}

#[test]
fn a_data_directory_is_closed_to_other_users() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("lost+found")).unwrap();
    assert_eq!(mode_after_claim(folder.path(), 0o755), Ok(0o700), "empty");
    std::fs::write(folder.path().join("notes"), "").unwrap();
    assert_eq!(
        mode_after_claim(folder.path(), 0o775),
        Ok(0o700),
        "used before"
    );
}

/// Returns the result for a folder with this mode and one file.
fn claim_with_file(mode: u32, name: &str, content: &str) -> Result<u32, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), content).unwrap();
    mode_after_claim(folder.path(), mode)
}

#[test]
fn a_lock_file_of_another_program_makes_no_data_directory() {
    assert_eq!(claim_with_file(0o755, "lock", "4711\n"), Ok(0o700));
    for (mode, content) in [
        // `/tmp` with a lock of its root user.
        (0o1777, "4711\n"),
        (0o777, "4711\n"),
        (0o755, "4711 of another program\n"),
        (0o755, "4711                 of another program\n"),
        (0o755, ""),
    ] {
        let refused = claim_with_file(mode, "lock", content).unwrap_err();
        assert!(refused.contains(&format!("mode {mode:04o}")), "{refused}");
    }
}

#[test]
fn a_database_makes_a_data_directory_unless_the_folder_is_sticky() {
    assert_eq!(claim_with_file(0o777, "nearpath.db", ""), Ok(0o700));
    let refused = claim_with_file(0o1777, "nearpath.db", "").unwrap_err();
    assert!(refused.contains("mode 1777"), "{refused}");
}

#[test]
fn a_folder_of_another_user_is_refused() {
    nearpath_testkit::need_root!();
    let folder = tempfile::tempdir().unwrap();
    for mode in [0o700, 0o755] {
        std::os::unix::fs::chown(folder.path(), Some(4711), None).unwrap();
        let refused = mode_after_claim(folder.path(), mode).unwrap_err();
        assert!(refused.contains("user with id 4711"), "{refused}");
    }
}

#[test]
fn a_folder_that_others_use_is_refused_unchanged() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("notes"), "").unwrap();
    let refused = mode_after_claim(folder.path(), 0o1777).unwrap_err();
    assert!(refused.contains("mode 1777"), "{refused}");
    let mode = folder.path().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o1777);
    assert_eq!(
        mode_after_claim(folder.path(), 0o700),
        Ok(0o700),
        "private already"
    );
}
