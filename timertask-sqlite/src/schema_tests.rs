use std::path::PathBuf;
use std::sync::Barrier;
use std::time::Duration;

use super::*;

/// A layout that does not exist yet.
const NEXT: [&str; 2] =
    [STEPS[0], "ALTER TABLE timertask_plan ADD COLUMN note TEXT; UPDATE timertask_plan SET note = 'old'"];

struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("timertask-sqlite-schema-{}-{name}.db", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn open(&self) -> Connection {
        let connection = Connection::open(&self.0).unwrap();
        connection.busy_timeout(Duration::from_secs(60)).unwrap();
        connection
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn layout(connection: &Connection) -> (i64, i64) {
    let version = connection.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    (find(connection).unwrap().unwrap().1, version)
}

fn columns(connection: &Connection) -> i64 {
    let sql = "SELECT count(*) FROM pragma_table_info('timertask_plan') WHERE name = 'note'";
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[test]
fn an_older_layout_is_brought_forward_and_keeps_its_id_and_rows() {
    let file = File::new("forward");
    let connection = file.open();
    let id = prepare(&connection, Home::Own).unwrap();
    connection
        .execute_batch("INSERT INTO timertask_plan VALUES ('', 'p', x'00', 0, 0, 0, 0, 0, 0, 0, 0, '', '', 0)")
        .unwrap();
    assert_eq!(prepare_by(&connection, Home::Own, &NEXT).unwrap(), id);
    assert_eq!(layout(&connection), (2, 2));
    let note: String = connection.query_row("SELECT note FROM timertask_plan", [], |row| row.get(0)).unwrap();
    assert_eq!(note, "old");
    // The version before is told so, whether it opens the file or has it open.
    assert_eq!(prepare(&connection, Home::Own).unwrap_err().kind(), StoreErrorKind::SchemaTooNew);
    assert_eq!(verify(&connection, &id).unwrap_err().kind(), StoreErrorKind::SchemaTooNew);
}

#[test]
fn a_step_that_fails_changes_nothing() {
    let file = File::new("failing");
    let connection = file.open();
    let id = prepare(&connection, Home::Own).unwrap();
    let failing = [STEPS[0], NEXT[1], "INSERT INTO gone VALUES (1)"];
    assert_eq!(prepare_by(&connection, Home::Own, &failing).unwrap_err().kind(), StoreErrorKind::Internal);
    assert!(connection.is_autocommit());
    assert_eq!((layout(&connection), columns(&connection)), ((1, 1), 0));
    assert_eq!(prepare(&connection, Home::Own).unwrap(), id);
}

#[test]
fn of_several_that_bring_it_forward_at_once_one_does() {
    let file = File::new("race");
    let id = prepare(&file.open(), Home::Own).unwrap();
    let start = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let connection = file.open();
                start.wait();
                assert_eq!(prepare_by(&connection, Home::Own, &NEXT).unwrap(), id);
            });
        }
    });
    assert_eq!(layout(&file.open()), (2, 2));
}

#[test]
fn a_guest_is_brought_forward_as_a_guest() {
    let file = File::new("guest");
    let connection = file.open();
    connection.execute_batch("PRAGMA user_version = 40; CREATE TABLE theirs (x)").unwrap();
    assert_eq!(prepare(&connection, Home::Own).unwrap_err().kind(), StoreErrorKind::Misconfigured);
    let id = prepare(&connection, Home::Application).unwrap();
    // Also by a handle that did not say where it lives.
    assert_eq!(prepare_by(&connection, Home::Own, &NEXT).unwrap(), id);
    assert_eq!(layout(&connection), (2, 40));
}

#[test]
fn a_look_at_a_file_that_another_is_making_is_of_one_moment() {
    let folder = std::env::temp_dir().join(format!("timertask-sqlite-moment-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("a.db");
    let [looker, maker] = [(); 2].map(|()| Connection::open(&path).unwrap());
    maker.busy_timeout(std::time::Duration::ZERO).unwrap();
    let seen = at_one_moment(&looker, || {
        assert!(!has_store(&looker)?, "the file is new");
        // Whether the other gets through or has to wait, what is read afterwards belongs to what was read before.
        let _ = prepare(&maker, Home::Own);
        up_to_date(&looker, Home::Own, LAYOUT)
    });
    assert!(matches!(seen, Ok(None)), "half of what another made was seen");
    assert!(looker.is_autocommit(), "the look is over");
    let id = prepare(&maker, Home::Own).unwrap();
    assert_eq!(prepare(&looker, Home::Own).unwrap(), id);
    std::fs::remove_dir_all(&folder).unwrap();
}
