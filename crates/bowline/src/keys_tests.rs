//! The ring on disk: made once, kept, readable by its owner alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use bowline_env::files::OsFiles;

use super::*;

fn on_disk(dir: &Path) -> Config {
    let mut config = Config::default();
    config.store.url = StoreUrl::Disk(dir.to_owned());
    config
}

fn signer(keys: &LoadedKeys) -> String {
    keys.ring.signer().id().to_owned()
}

#[test]
fn a_ring_is_made_once_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let config = on_disk(&dir.path().join("not/there/yet"));
    assert!(LoadedKeys::find(&config).unwrap().is_none(), "looking makes nothing");
    let first = LoadedKeys::load(&config).unwrap();
    assert_eq!((signer(&first), first.is_volatile()), (signer(&LoadedKeys::load(&config).unwrap()), false));
    let path = dir.path().join("not/there/yet").join(FILE_NAME);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(first.origin, KeyOrigin::File(path));
}

#[test]
fn a_ring_that_others_can_read_or_that_is_damaged_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = on_disk(dir.path());
    LoadedKeys::load(&config).unwrap();
    let path = dir.path().join(FILE_NAME);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(LoadedKeys::load(&config), Err(KeysError::Exposed { mode: 0o640, .. })));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    for (text, problem) in [
        ("", "damaged"),
        ("{\"version\":2,\"keys\":[]}", "another version"),
        ("{\"version\":1,\"keys\":[{\"id\":\"k\",\"secret\":\"c2hvcnQ=\",\"made_at\":1}]}", "5 bytes"),
        ("{\"version\":1,\"keys\":[{\"id\":\"k\",\"secret\":7,\"made_at\":1}]}", "damaged"),
    ] {
        fs::write(&path, text).unwrap();
        let error = LoadedKeys::load(&config).unwrap_err().to_string();
        assert!(error.contains(problem) && !error.contains("c2hv"), "{error}");
    }
}

#[test]
fn the_newest_signs_older_verify_and_the_last_one_cannot_be_retired() {
    let dir = tempfile::tempdir().unwrap();
    let config = on_disk(dir.path());
    let old = signer(&LoadedKeys::load(&config).unwrap());
    let retire = |id: &str| KeyFile::change(&OsFiles, dir.path(), |file| file.retire(id));
    assert!(matches!(retire(&old), Err(KeysError::LastKey(_))));
    assert!(matches!(retire("k_none"), Err(KeysError::NoSuchKey(_))));
    let mut new = String::new();
    KeyFile::change(&OsFiles, dir.path(), |file| {
        new = file.add();
        Ok(())
    })
    .unwrap();
    assert_eq!(signer(&LoadedKeys::load(&config).unwrap()), new);
    retire(&old).unwrap();
    retire(&old).unwrap();
    let keys = LoadedKeys::load(&config).unwrap();
    assert!(keys.ring.keys().iter().any(|key| key.id() == old && key.is_retired()));
    assert_eq!(signer(&keys), new);
    assert!(matches!(retire(&new), Err(KeysError::LastKey(_))));
}

#[test]
fn many_who_start_at_once_agree_on_one_key() {
    let dir = tempfile::tempdir().unwrap();
    let config = on_disk(dir.path());
    let ids: Vec<String> = std::thread::scope(|scope| {
        let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| signer(&LoadedKeys::load(&config).unwrap()))).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[test]
fn a_store_in_memory_has_a_key_that_is_warned_about_and_settings_win() {
    let mut config = Config::default();
    config.store.url = StoreUrl::Memory;
    let keys = LoadedKeys::load(&config).unwrap();
    assert!(keys.origin == KeyOrigin::Volatile && keys.is_volatile());
    assert_ne!(signer(&keys), signer(&LoadedKeys::load(&config).unwrap()));
    config.state.keys = vec![SealKey::new("mine", &[1; 32], false).unwrap()];
    let keys = LoadedKeys::load(&config).unwrap();
    assert_eq!((signer(&keys), keys.origin.clone(), keys.is_volatile()), ("mine".into(), KeyOrigin::Settings, false));
}

#[test]
fn no_secret_is_shown() {
    let key = StoredKey::random();
    let shown = format!("{key:?} {:?}", key.key().unwrap());
    assert!(!shown.contains(&key.secret) && shown.len() < 80, "{shown}");
}
