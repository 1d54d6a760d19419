//! A report is sent once a night, also where the instance that makes it dies on the way.

use std::time::Duration;

use timertask::{BoxError, OnOrphan, Plan, Run};
use timertask_testkit::{Cluster, Left};

fn report(run: &Run) -> Result<(), BoxError> {
    run.wait(Duration::from_secs(600))?;
    Ok(())
}

#[test]
fn a_report_whose_instance_dies_is_made_by_another_one() {
    let plan = Plan::new("report", "0 2 * * *").on_orphan(OnOrphan::Rerun { max: 1 });
    let mut cluster = Cluster::builder().instances(3).seed(1).plans([plan]).job(report).build();
    cluster.advance(Duration::from_secs(2 * 3600 + 300));
    let dead = cluster.starts()[0].instance;
    cluster.kill(dead);
    cluster.advance(Duration::from_secs(3600));

    cluster.expect_starts("report", 2);
    let again = &cluster.starts()[1];
    assert_ne!(again.instance, dead);
    assert_eq!(again.left.as_ref().map(|(_, how)| how), Some(&Left::Succeeded));
    cluster.check();
}
