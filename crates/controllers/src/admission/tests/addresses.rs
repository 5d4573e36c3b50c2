use mullion_api::labels::PRIVATE_IPV4;
use serde_json::{Value, json};

use super::{Cluster, create, update};
use crate::admission::addresses::WindowsAddresses;

const OURS: &str = "system:mullion";

fn rule() -> WindowsAddresses {
    WindowsAddresses {
        controllers: vec![OURS.to_owned()],
    }
}

/// Returns a cluster with a Windows node, a Linux node, a RuntimeClass for Windows, and the switch set to `on`.
fn cluster(on: &str) -> Cluster {
    let node = |os: &str| json!({"metadata": {"labels": {"kubernetes.io/os": os}}});
    let class = json!({"handler": "runhcs-wcow-process", "scheduling": {"nodeSelector": {"kubernetes.io/os": "windows"}}});
    Cluster::default()
        .with("nodes", "win-1", node("windows"))
        .with("nodes", "lin-1", node("linux"))
        .with("runtimeclasses", "windows-2022", class)
        .with(
            "configmaps",
            "amazon-vpc-cni",
            json!({"data": {"enable-windows-ipam": on}}),
        )
}

/// Returns a pod with one container and these fields in its spec.
fn pod(spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "web", "image": "iis"}, {"name": "log"}]}});
    for (key, value) in spec.as_object().expect("an object") {
        pod["spec"][key] = value.clone();
    }
    pod
}

fn required(terms: Value) -> Value {
    json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
}

fn expressions(expressions: Value) -> Value {
    required(json!([{"matchExpressions": expressions}]))
}

/// Returns whether a new pod with this spec gets a request and a limit of one address, and nothing else.
fn is_requested(known: &Cluster, spec: Value) -> bool {
    let before = pod(spec);
    let after = create(&rule(), known, before.clone()).expect("it is admitted");
    if after == before {
        return false;
    }
    let mut expected = before;
    for list in ["requests", "limits"] {
        expected["spec"]["containers"][0]["resources"][list][PRIVATE_IPV4] = "1".into();
    }
    assert_eq!(after, expected);
    true
}

#[test]
fn a_pod_that_will_run_on_windows_requests_one_address_however_it_says_so() {
    let known = cluster("true");
    let os = |values: Value| json!({"key": "kubernetes.io/os", "operator": "In", "values": values});
    let build = json!({"key": "node.kubernetes.io/windows-build", "operator": "In", "values": ["10.0.20348"]});
    let on_node = |name: &str| {
        required(
            json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]),
        )
    };
    let says_windows = [
        json!({"nodeSelector": {"kubernetes.io/os": "windows"}}),
        json!({"nodeSelector": {"beta.kubernetes.io/os": "windows"}}),
        json!({"nodeSelector": {"node.kubernetes.io/windows-build": "10.0.20348"}}),
        json!({"os": {"name": "windows"}}),
        json!({"runtimeClassName": "windows-2022"}),
        json!({"nodeName": "win-1"}),
        on_node("win-1"),
        expressions(json!([os(json!(["windows"]))])),
        expressions(
            json!([{"key": "topology.kubernetes.io/zone", "operator": "Exists"}, os(json!(["windows"]))]),
        ),
        expressions(json!([{"key": "kubernetes.io/os", "operator": "NotIn", "values": ["linux"]}])),
        expressions(
            json!([{"key": "beta.kubernetes.io/os", "operator": "In", "values": ["windows"]}]),
        ),
        expressions(json!([build.clone()])),
        expressions(json!([{"key": "node.kubernetes.io/windows-build", "operator": "Exists"}])),
        required(
            json!([{"matchExpressions": [os(json!(["windows"]))]}, {"matchExpressions": [build]}]),
        ),
        // A term without requirements matches no node.
        required(json!([{"matchExpressions": [os(json!(["windows"]))]}, {}])),
    ];
    for spec in says_windows {
        assert!(is_requested(&known, spec.clone()), "{spec}");
    }
    let does_not = [
        json!({}),
        json!({"nodeSelector": {"kubernetes.io/os": "linux"}}),
        json!({"os": {"name": "linux"}}),
        json!({"runtimeClassName": "unknown"}),
        json!({"nodeName": "lin-1"}),
        on_node("lin-1"),
        on_node("unknown"),
        expressions(json!([os(json!(["windows", "linux"]))])),
        expressions(json!([{"key": "kubernetes.io/os", "operator": "Exists"}])),
        expressions(
            json!([{"key": "kubernetes.io/os", "operator": "NotIn", "values": ["windows"]}]),
        ),
        expressions(
            json!([{"key": "node.kubernetes.io/windows-build", "operator": "DoesNotExist"}]),
        ),
        required(
            json!([{"matchExpressions": [os(json!(["windows"]))]}, {"matchExpressions": [os(json!(["linux"]))]}]),
        ),
        required(json!([{}])),
        json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [os(json!(["windows"]))]}}]}}}),
    ];
    for spec in does_not {
        assert!(!is_requested(&known, spec.clone()), "{spec}");
    }
}

#[test]
fn a_windows_pod_on_the_host_s_network_requests_no_address() {
    let known = cluster("true");
    let windows = json!({"kubernetes.io/os": "windows"});
    let host_process = json!({"windowsOptions": {"hostProcess": true}});
    for spec in [
        json!({"nodeSelector": windows, "hostNetwork": true}),
        json!({"nodeSelector": windows, "securityContext": host_process}),
        json!({"nodeSelector": windows, "containers": [{"name": "a", "securityContext": host_process}]}),
    ] {
        assert!(!is_requested(&known, spec.clone()), "{spec}");
    }
}

#[test]
fn other_requests_stay_and_another_number_of_addresses_becomes_one() {
    let resources =
        json!({"requests": {"cpu": "100m", PRIVATE_IPV4: "2"}, "limits": {PRIVATE_IPV4: "2"}});
    let spec =
        json!({"os": {"name": "windows"}, "containers": [{"name": "web", "resources": resources}]});
    let pod = create(&rule(), &cluster("true"), pod(spec)).expect("it is admitted");
    assert_eq!(
        pod["spec"]["containers"][0]["resources"],
        json!({"requests": {"cpu": "100m", PRIVATE_IPV4: "1"}, "limits": {PRIVATE_IPV4: "1"}})
    );
}

#[test]
fn the_switch_decides_and_is_read_as_go_reads_a_boolean() {
    let windows = || json!({"os": {"name": "windows"}});
    for on in ["1", "t", "T", "true", "True", "TRUE"] {
        assert!(is_requested(&cluster(on), windows()), "{on}");
    }
    for off in ["0", "false", "yes", "tRUE", " true", ""] {
        assert!(!is_requested(&cluster(off), windows()), "{off}");
    }
    assert!(!is_requested(&Cluster::default(), windows()));
    let legacy = cluster("true").with("deployments", "vpc-resource-controller", json!({}));
    assert!(!is_requested(&legacy, windows()));
}

/// Returns a pod with this address in its annotation.
fn annotated(address: Option<&str>) -> Value {
    let mut pod = pod(json!({}));
    if let Some(address) = address {
        pod["metadata"]["annotations"][PRIVATE_IPV4] = address.into();
    }
    pod
}

#[test]
fn nobody_creates_a_pod_with_an_address() {
    let refused = Err((
        403,
        "pod cannot be created with vpc.amazonaws.com/PrivateIPv4Address annotation".to_owned(),
    ));
    for address in ["10.0.0.9/24", ""] {
        let pod = annotated(Some(address));
        assert_eq!(create(&rule(), &cluster("true"), pod.clone()), refused);
        assert_eq!(create(&rule(), &cluster("false"), pod.clone()), Ok(pod));
    }
}

#[test]
fn only_the_address_controllers_change_a_pod_s_address() {
    let refused = Some((
        403,
        "annotation is not set by vpc-resource-controller".to_owned(),
    ));
    let (none, one, two) = (
        annotated(None),
        annotated(Some("10.0.0.9/24")),
        annotated(Some("10.0.0.10/24")),
    );
    let on = cluster("true");
    for (old, new) in [(&none, &one), (&one, &two), (&one, &none)] {
        assert_eq!(update(&rule(), &on, "kubernetes-admin", old, new), refused);
        for controller in [
            OURS,
            "system:serviceaccount:kube-system:vpc-resource-controller",
            "system:serviceaccount:kube-system:eks-vpc-resource-controller",
            "eks:vpc-resource-controller",
        ] {
            assert_eq!(
                update(&rule(), &on, controller, old, new),
                None,
                "{controller}"
            );
        }
        assert_eq!(
            update(&rule(), &cluster("false"), "kubernetes-admin", old, new),
            None
        );
    }
    assert_eq!(
        update(&rule(), &on, "kubernetes-admin", &one, &one.clone()),
        None
    );
    assert_eq!(
        update(
            &rule(),
            &on,
            "kubernetes-admin",
            &none,
            &annotated(Some(""))
        ),
        None
    );
}
