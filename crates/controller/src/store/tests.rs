use proptest::prelude::*;

use super::*;
use crate::model::tests::any_command;
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
    (
        model,
        ControllerStore::open(DataDir::claim(folder.path()).unwrap())
            .unwrap()
            .1,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn written_models_are_read_back(commands in prop::collection::vec(prop::collection::vec(any_command(), 1..5), 0..12)) {
        let (model, read) = write_and_reload(commands);
        prop_assert_eq!(model, read);
    }
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
