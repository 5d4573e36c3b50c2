//! `mullion why node` and `mullion why nodepool`.

use serde_json::Value;

use super::why;

/// A saved cluster of the documentation.
const CLUSTER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plan/cluster.yaml");

#[test]
fn a_node_is_told_why_it_stays_or_how_it_could_go() {
    let said = why(
        &["node", "ip-10-0-1-22", "ip-10-0-0-12", "--state", CLUSTER],
        String::new(),
    );
    assert_eq!((said.code, said.stderr.as_str()), (Some(1), ""));
    insta::assert_snapshot!(said.stdout);
    let stays = ["node", "ip-10-0-1-22", "--state", CLUSTER, "-o", "json"];
    let stays = why(&stays, String::new());
    assert_eq!(stays.code, Some(0));
    let json: Value = serde_json::from_str(&stays.stdout).expect("one object");
    assert_eq!(json["nodePool"], "linux");
    let reason = json["stays"]["reason"].as_str().expect("a reason");
    assert!(reason.contains("do-not-disrupt"), "{reason}");
}

#[test]
fn a_pool_is_told_what_it_buys() {
    let said = why(&["nodepool", "linux", "--state", CLUSTER], String::new());
    assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""));
    insta::assert_snapshot!(said.stdout);
    for (args, expected) in [
        (
            &["nodepool", "gold", "--state", CLUSTER][..],
            "error: there is no NodePool gold\nhint:  there are linux\n",
        ),
        (
            &["node", "--state", CLUSTER],
            "error: which node? Its name is missing\nhint:  mullion why node NAME\n",
        ),
        (
            &["node", "a", "-l", "app=a"],
            "error: a node is asked about by its name: -f, -l and -n are about pods\nhint:  mullion why node NAME\n",
        ),
    ] {
        let said = why(args, String::new());
        assert_eq!((said.code, said.stderr.as_str()), (Some(2), expected));
    }
}
