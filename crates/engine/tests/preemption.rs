//! Preemption beyond the recorded vectors: room held for a preemptor, victims on their way out, budgets.

use mullion_engine::model::{
    Container, LabelSelector, NodeSpec, PdbSpec, PodSpec, PodTemplate, PodVolume, PreemptionPolicy,
    StringMap,
};
use mullion_engine::preempt::Preemption;
use mullion_engine::{Claims, Cluster, Decision, Options, Plugin, Profile};

fn cluster(nodes: &[&str]) -> Cluster {
    let mut cluster = Cluster::new(Options::default());
    for name in nodes {
        let mut node = NodeSpec::named(*name);
        node.allocatable
            .insert("cpu".into(), "4".parse().expect("a quantity"));
        node.allocatable
            .insert("pods".into(), "10".parse().expect("a quantity"));
        cluster.add_node(&node).expect("a new node");
    }
    cluster
}

fn pod(name: &str, priority: i32, cpu: &str) -> PodSpec {
    let mut container = Container::default();
    container
        .resources
        .requests
        .insert("cpu".into(), cpu.parse().expect("a quantity"));
    let labels = StringMap::from([(
        "app".to_owned(),
        name.split('-').next().unwrap_or(name).to_owned(),
    )]);
    let template = PodTemplate {
        namespace: "ns".into(),
        labels,
        priority,
        containers: vec![container],
        ..PodTemplate::default()
    };
    PodSpec {
        name: name.into(),
        template,
        ..PodSpec::default()
    }
}

fn preempt(cluster: &mut Cluster, pod: &PodSpec) -> Preemption {
    let Decision::Unschedulable(refused) = cluster.schedule_pod(pod, 0).expect("valid") else {
        panic!("{} fits somewhere", pod.name)
    };
    let class = cluster.pod_class(&pod.template).expect("valid");
    cluster.preempt(class, &pod.key(), &refused, 0)
}

fn victims(preemption: &Preemption) -> Vec<String> {
    match preemption {
        Preemption::Evict { chosen, .. } => chosen.victims.clone(),
        other => panic!("no eviction: {other:?}"),
    }
}

#[test]
fn room_held_for_a_preemptor_is_closed_to_its_equals_and_open_to_itself() {
    let mut cluster = cluster(&["a"]);
    let urgent = pod("urgent", 100, "3");
    cluster.nominate(&urgent, "a").expect("valid");
    let fits = |cluster: &mut Cluster, pod: &PodSpec| {
        matches!(cluster.schedule_pod(pod, 0), Ok(Decision::Node(_)))
    };
    assert!(!fits(&mut cluster, &pod("equal", 100, "2")));
    assert!(!fits(&mut cluster, &pod("lower", 1, "2")));
    assert!(fits(&mut cluster, &pod("higher", 101, "2")));
    assert!(fits(&mut cluster, &pod("small", 1, "1")));
    assert!(fits(&mut cluster, &urgent));
    cluster.bind(&urgent, "a").expect("a new pod");
    cluster.remove_pod(&urgent.key()).expect("just bound");
    assert!(
        fits(&mut cluster, &pod("equal", 100, "2")),
        "binding gave the held room up"
    );
}

#[test]
fn no_room_is_held_for_a_pod_that_has_finished() {
    let mut cluster = cluster(&["a"]);
    let mut first = pod("first", 10, "3");
    cluster.nominate(&first, "a").expect("valid");
    first.finished = true;
    cluster.nominate(&first, "a").expect("valid");
    let second = pod("second", 10, "3");
    let decision = cluster.schedule_pod(&second, 0).expect("valid");
    assert!(matches!(decision, Decision::Node(_)));
}

#[test]
fn a_pod_goes_to_the_node_it_was_promised_though_another_is_better() {
    let mut cluster = cluster(&["full", "half", "free"]);
    cluster.bind(&pod("a-1", 0, "4"), "full").expect("new");
    cluster.bind(&pod("a-2", 0, "2"), "half").expect("new");
    let node = |cluster: &mut Cluster, pod: &PodSpec| {
        let decision = cluster.schedule_pod(pod, 0).expect("valid");
        let Decision::Node(node) = decision else {
            panic!("{} has no node", pod.name)
        };
        cluster.node_name(node).to_owned()
    };
    let mut urgent = pod("urgent", 100, "2");
    assert_eq!(node(&mut cluster, &urgent), "free");
    cluster.nominate(&urgent, "half").expect("valid");
    assert_eq!(node(&mut cluster, &urgent), "half");
    urgent.nominated_node_name = Some("free".into());
    assert_eq!(node(&mut cluster, &urgent), "free", "its status says where");
    for gone in ["full", "none"] {
        urgent.nominated_node_name = Some(gone.into());
        assert_eq!(
            node(&mut cluster, &urgent),
            "free",
            "{gone} does not take it"
        );
    }
    // Room held there for others of its importance counts.
    urgent.nominated_node_name = Some("half".into());
    cluster.denominate(&urgent.key());
    cluster
        .nominate(&pod("equal", 100, "2"), "half")
        .expect("valid");
    assert_eq!(node(&mut cluster, &urgent), "free");
}

#[test]
fn without_dynamic_resources_preemption_speaks_for_itself() {
    let profile = Profile {
        post_filters: vec![Plugin::DefaultPreemption],
        ..Profile::default()
    };
    let mut cluster = Cluster::with_profiles(Options::default(), &[profile]);
    for name in ["a", "b"] {
        let mut node = NodeSpec::named(name);
        node.allocatable
            .insert("cpu".into(), "4".parse().expect("a quantity"));
        cluster.add_node(&node).expect("new");
    }
    let message = |cluster: &mut Cluster, pod: &PodSpec| {
        let preemption = preempt(cluster, pod);
        cluster.preemption_message(Claims::None, &preemption)
    };
    let mut urgent = pod("urgent", 100, "1");
    assert_eq!(
        message(&mut cluster, &urgent).as_deref(),
        Some(
            "preemption: 0/2 nodes are available: 2 No preemption victims found for incoming pod."
        )
    );
    // What is refused before any node is looked at is preempted for, in vain.
    let claim = "none".to_owned();
    urgent.template.volumes = vec![PodVolume::Claim { claim }];
    assert_eq!(
        message(&mut cluster, &urgent).as_deref(),
        Some("preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling.")
    );
    urgent.template.preemption_policy = PreemptionPolicy::Never;
    assert_eq!(
        message(&mut cluster, &urgent).as_deref(),
        Some("preemption: not eligible due to preemptionPolicy=Never.")
    );
    let quiet = Profile {
        post_filters: Default::default(),
        ..Profile::default()
    };
    let mut cluster = Cluster::with_profiles(Options::default(), &[quiet]);
    cluster.add_node(&NodeSpec::named("a")).expect("new");
    assert_eq!(message(&mut cluster, &pod("urgent", 100, "1")), None);
}

#[test]
fn a_preemptor_waits_while_its_victims_are_on_their_way_out() {
    let mut cluster = cluster(&["a"]);
    let mut victim = pod("victim", 1, "3");
    cluster.bind(&victim, "a").expect("a new pod");
    let urgent = pod("urgent", 100, "3");
    assert_eq!(victims(&preempt(&mut cluster, &urgent)), ["ns/victim"]);
    cluster.nominate(&urgent, "a").expect("valid");
    victim.terminating = true;
    victim.node_name = Some("a".into());
    cluster.set_pod(&victim).expect("valid");
    assert_eq!(
        victims(&preempt(&mut cluster, &urgent)),
        Vec::<String>::new(),
        "whom somebody else deletes nobody waits for"
    );
    victim.preempted = true;
    cluster.set_pod(&victim).expect("valid");
    assert_eq!(
        preempt(&mut cluster, &urgent),
        Preemption::VictimsTerminating
    );
    cluster.denominate(&urgent.key());
    assert_eq!(
        victims(&preempt(&mut cluster, &urgent)),
        Vec::<String>::new(),
        "it is leaving already"
    );
}

#[test]
fn a_preemptor_waits_for_victims_that_are_being_evicted_where_it_was_promised_room() {
    let mut cluster = cluster(&["a", "b"]);
    cluster.bind(&pod("here", 1, "3"), "a").expect("a new pod");
    cluster.bind(&pod("there", 1, "3"), "b").expect("a new pod");
    cluster
        .bind(&pod("peer", 100, "1"), "a")
        .expect("a new pod");
    let urgent = pod("urgent", 100, "3");
    let preempt = |cluster: &mut Cluster, evicting: &str| {
        let class = cluster.pod_class(&urgent.template).expect("valid");
        let Decision::Unschedulable(refused) = cluster.schedule_pod(&urgent, 0).expect("valid")
        else {
            panic!("both nodes are full");
        };
        let evicting = |key: &str| key == evicting;
        cluster.preempt_while_evicting(class, &urgent.key(), &refused, 0, &evicting)
    };
    assert_eq!(
        victims(&preempt(&mut cluster, "ns/here")).len(),
        1,
        "nothing is promised yet"
    );
    cluster.nominate(&urgent, "a").expect("valid");
    let waits = Preemption::VictimsTerminating;
    assert_eq!(preempt(&mut cluster, "ns/here"), waits);
    assert_ne!(preempt(&mut cluster, "ns/there"), waits, "elsewhere");
    assert_ne!(preempt(&mut cluster, "ns/peer"), waits, "not for this one");
}

#[test]
fn budgets_are_kept_where_another_node_allows_it() {
    let mut cluster = cluster(&["a", "b"]);
    cluster
        .bind(&pod("guarded-1", 1, "4"), "a")
        .expect("a new pod");
    cluster
        .bind(&pod("free-1", 50, "4"), "b")
        .expect("a new pod");
    cluster.set_pdb(&PdbSpec {
        namespace: "ns".into(),
        name: "guard".into(),
        selector: Some(LabelSelector {
            match_labels: StringMap::from([("app".into(), "guarded".into())]),
            ..LabelSelector::default()
        }),
        disruptions_allowed: 0,
        disrupted_pods: Vec::new(),
    });
    let urgent = pod("urgent", 100, "1");
    assert_eq!(
        victims(&preempt(&mut cluster, &urgent)),
        ["ns/free-1"],
        "a higher priority, but no budget broken"
    );
    cluster.remove_pdb("ns", "guard");
    assert_eq!(victims(&preempt(&mut cluster, &urgent)), ["ns/guarded-1"]);
}

#[test]
fn a_pod_that_may_not_preempt_says_so() {
    let mut cluster = cluster(&["a"]);
    cluster.bind(&pod("low", 1, "4"), "a").expect("a new pod");
    let mut polite = pod("polite", 100, "1");
    polite.template.preemption_policy = PreemptionPolicy::Never;
    let preemption = preempt(&mut cluster, &polite);
    assert_eq!(preemption, Preemption::PolicyNever);
    let message = cluster.preemption_message(Claims::None, &preemption);
    assert_eq!(
        message.as_deref(),
        Some(
            "no new claims to deallocate, preemption: not eligible due to preemptionPolicy=Never."
        )
    );
}
