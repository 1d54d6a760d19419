//! An instance stands still in the midst of a run, another takes over, and the first one wakes: what it writes then is
//! refused, since its fence is older.

use std::sync::Arc;
use std::time::Duration;

use timertask::{BoxError, Fence, OnOrphan, Plan, Run};
use timertask_testkit::Cluster;

#[test]
fn what_a_zombie_writes_is_refused() {
    let table: Arc<std::sync::Mutex<(Fence, u32)>> = Arc::default();
    let rows = Arc::clone(&table);
    let job = move |run: &Run| -> Result<(), BoxError> {
        let _ = run.wait(Duration::from_secs(20));
        let mut row = rows.lock().unwrap();
        if run.fence() < row.0 {
            return Err("a newer run has written".into());
        }
        *row = (run.fence(), row.1 + 1);
        Ok(())
    };
    let plan = Plan::new("invoices", "0 * * * *").on_orphan(OnOrphan::Rerun { max: 1 });
    let mut cluster = Cluster::builder().instances(2).seed(3).plans([plan]).job(job).build();
    cluster.advance(Duration::from_secs(3610));
    cluster.freeze(cluster.starts()[0].instance);
    cluster.advance(Duration::from_secs(300));
    cluster.thaw(cluster.starts()[0].instance);
    cluster.advance(Duration::from_secs(60));

    cluster.expect_starts("invoices", 2);
    assert_eq!(table.lock().unwrap().1, 1, "written once");
    cluster.check();
}
