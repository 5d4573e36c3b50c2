//! Pods behind the gate `mullion.dev/image`: placed when their registry answers, replaced when they should have had an address, let go
//! after half a minute.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use k8s_openapi::api::{
    apps::v1::ReplicaSet,
    core::v1::{ConfigMap, Pod},
};
use kube::{Api, ResourceExt, api::PostParams};
use mullion_controllers::{
    admission::{
        ClusterReader,
        placement::{Facts, PlaceByImage, Taint, usual_taint},
    },
    image_gate::{self, RegistryRetry},
    kubelet::pace::Pace,
    workloads,
};
use mullion_engine::images::{ImageRef, ImageTable, Runs};
use serde_json::{Value, json};

use crate::world::{World, pod};

/// Registries that answer when the test says so.
#[derive(Default)]
struct Answers {
    runs: Mutex<BTreeMap<String, Runs>>,
    asked: AtomicUsize,
}

impl Answers {
    fn say(&self, image: &str, runs: &str) {
        let image = ImageRef::parse(image).expect("the name is valid");
        let mut all = self.runs.lock().expect("no panic");
        all.insert(image.full_name(), runs.parse().expect("platforms"));
    }
}

impl Facts for Answers {
    fn in_registries(
        &self,
        images: &[Option<ImageRef>],
        _: &dyn Fn() -> Vec<Arc<Value>>,
    ) -> Vec<Option<Runs>> {
        let runs = self.runs.lock().expect("no panic");
        let of = |image: &Option<ImageRef>| runs.get(&image.as_ref()?.full_name()).cloned();
        images.iter().map(of).collect()
    }

    fn windows_taints(&self, _: &dyn ClusterReader) -> Vec<Taint> {
        vec![usual_taint()]
    }
}

impl RegistryRetry for Answers {
    fn retry_lookups(&self, _: &[ImageRef], _: &[Arc<Value>]) {
        self.asked.fetch_add(1, Ordering::SeqCst);
    }
}

const IMAGE: &str = "r.example.com/app:1";

async fn world() -> (World, Arc<Answers>) {
    let world = World::new(Pace::INSTANT).await;
    let answers = Arc::new(Answers::default());
    let rule = PlaceByImage {
        table: Arc::new(ImageTable::default()),
        facts: answers.clone(),
        gates_unknown: true,
    };
    image_gate::start(&world.context, rule, answers.clone());
    (world, answers)
}

/// Windows pods get addresses.
async fn with_addresses(world: &World) {
    let maps: Api<ConfigMap> = Api::namespaced(world.context.client.clone(), "kube-system");
    let map =
        json!({"metadata": {"name": "amazon-vpc-cni"}, "data": {"enable-windows-ipam": "true"}});
    let map = serde_json::from_value(map).expect("a ConfigMap");
    maps.create(&PostParams::default(), &map)
        .await
        .expect("it is accepted");
}

fn gated(name: &str, spec: Value) -> Value {
    let mut pod = pod(name, IMAGE);
    pod["spec"]["schedulingGates"] =
        json!([{"name": "mullion.dev/image"}, {"name": "example.com/wait"}]);
    for (field, value) in spec.as_object().expect("an object") {
        pod["spec"][field] = value.clone();
    }
    pod
}

/// Waits until the pod has lost the gate and returns it; the gate of somebody else stays.
async fn released(world: &World, name: &str) -> Value {
    let pod = world
        .until("the gate is gone", || {
            let pod = world.pod(name)?;
            let spec = pod.spec.as_ref()?;
            let mut gates = spec.scheduling_gates.iter().flatten();
            let is_gated = gates.any(|gate| gate.name == "mullion.dev/image");
            (!is_gated).then_some(pod)
        })
        .await;
    let pod = serde_json::to_value(&*pod).expect("JSON");
    assert_eq!(
        pod["spec"]["schedulingGates"],
        json!([{"name": "example.com/wait"}])
    );
    pod
}

async fn reasons(world: &World, name: &str) -> Vec<String> {
    let events = world.events(name).await;
    events.into_iter().map(|(reason, _)| reason).collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_registry_says_later_narrows_the_pod_and_takes_the_gate_away() {
    let (world, answers) = world().await;
    let zone = json!({"key": "topology.kubernetes.io/zone", "operator": "Exists"});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [zone]}],
    }}});
    world
        .create::<Pod>(gated("web", json!({"affinity": affinity})))
        .await;
    world.pass(12).await;
    assert!(
        answers.asked.load(Ordering::SeqCst) >= 10,
        "it is asked again and again"
    );
    answers.say(IMAGE, "linux/arm64");
    let pod = released(&world, "web").await;
    assert_eq!(
        pod["spec"]["nodeSelector"],
        json!({"kubernetes.io/os": "linux"})
    );
    let required =
        &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let arch = json!({"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]});
    assert_eq!(
        required["nodeSelectorTerms"],
        json!([{"matchExpressions": [zone, arch]}])
    );
    // No update can add it.
    assert_eq!(pod["spec"]["os"], Value::Null);
    let annotation = &pod["metadata"]["annotations"]["mullion.dev/placed-by-image"];
    assert!(annotation.as_str().expect("a text").contains("registry"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_which_nothing_is_learnt_is_let_go_after_half_a_minute() {
    let (world, _) = world().await;
    world.create::<Pod>(gated("web", json!({}))).await;
    world.pass(29).await;
    let gates = |pod: &Pod| {
        pod.spec
            .as_ref()
            .and_then(|spec| spec.scheduling_gates.clone())
    };
    let waiting = world.pod("web").expect("it is there");
    assert_eq!(gates(&waiting).map(|gates| gates.len()), Some(2));
    world.pass(2).await;
    let pod = released(&world, "web").await;
    assert_eq!(pod["spec"]["nodeSelector"], Value::Null);
    assert_eq!(reasons(&world, "web").await, ["ImagesUnknown"]);
}

#[tokio::test(start_paused = true)]
async fn a_windows_pod_that_nobody_makes_anew_is_let_go_and_told_that_it_lacks_an_address() {
    let (world, answers) = world().await;
    with_addresses(&world).await;
    answers.say(IMAGE, "windows/amd64:10.0.20348");
    world.create::<Pod>(gated("bare", json!({}))).await;
    let pod = released(&world, "bare").await;
    assert_eq!(
        pod["spec"]["nodeSelector"],
        json!({"kubernetes.io/os": "windows"})
    );
    world.pass(1).await;
    assert_eq!(reasons(&world, "bare").await, ["ImageRunsOnWindows"]);
    // A pod on the host's network has no address of its own.
    world
        .create::<Pod>(gated("host", json!({"hostNetwork": true})))
        .await;
    released(&world, "host").await;
    world.pass(1).await;
    assert_eq!(reasons(&world, "host").await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn windows_pods_of_a_replica_set_are_made_anew_one_in_ten_seconds() {
    let (world, answers) = world().await;
    with_addresses(&world).await;
    workloads::start(&world.context);
    let mut template = gated("web", json!({}));
    template["metadata"] = json!({"labels": {"app": "web"}});
    world
        .create::<ReplicaSet>(json!({
            "metadata": {"name": "web"},
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        }))
        .await;
    let names = || -> BTreeSet<String> {
        let pods = world.context.informers.pods.in_namespace("default");
        pods.iter().map(|pod| pod.name_any()).collect()
    };
    let mut seen = world
        .until("there are three", || {
            Some(names()).filter(|names| names.len() == 3)
        })
        .await;
    answers.say(IMAGE, "windows/amd64:10.0.20348");
    // Each new name is a pod that was made in place of a deleted one.
    for (second, made) in (1..30).map(|second| (second, 3 + usize::div_ceil(second, 10))) {
        world.pass(1).await;
        seen.extend(names());
        let is_between = second % 10 >= 3;
        assert!(!is_between || seen.len() == made, "{second} s: {seen:?}");
        assert_eq!(names().len(), 3);
    }
}
