use k8s_openapi::api::discovery::v1::EndpointConditions;

use super::*;
use crate::service::backend::tests::service;

fn endpoint(number: usize) -> Endpoint {
    Endpoint {
        addresses: vec![format!("10.0.{}.{}", number / 250, number % 250)],
        ..Endpoint::default()
    }
}

fn ports(number: i32) -> Vec<EndpointPort> {
    vec![EndpointPort {
        name: Some("http".to_owned()),
        port: Some(number),
        ..EndpointPort::default()
    }]
}

fn wanted(groups: impl IntoIterator<Item = (i32, std::ops::Range<usize>)>) -> EndpointsByPorts {
    let group = |(number, range): (i32, std::ops::Range<usize>)| {
        (
            port_key(&ports(number)),
            (ports(number), range.map(endpoint).collect()),
        )
    };
    groups.into_iter().map(group).collect()
}

/// Returns the slices as they are stored after a plan is carried out.
pub(in crate::service::slices) fn carry_out(
    mut slices: Vec<Arc<EndpointSlice>>,
    plan: Plan,
) -> Vec<Arc<EndpointSlice>> {
    slices.retain(|slice| {
        !plan
            .delete
            .iter()
            .any(|gone| gone.metadata.name == slice.metadata.name)
    });
    for update in plan.update {
        let slot = slices
            .iter_mut()
            .find(|slice| slice.metadata.name == update.metadata.name);
        *slot.expect("only existing slices are updated") = Arc::new(update);
    }
    for mut new in plan.create {
        let taken = |name: &str| {
            slices
                .iter()
                .any(|slice| slice.metadata.name.as_deref() == Some(name))
        };
        let name = (0..)
            .map(|i| format!("slice-{i}"))
            .find(|name| !taken(name));
        new.metadata.name = name;
        slices.push(Arc::new(new));
    }
    slices
}

fn sizes(slices: &[Arc<EndpointSlice>]) -> Vec<usize> {
    let mut sizes: Vec<_> = slices.iter().map(|slice| endpoints(slice).len()).collect();
    sizes.sort_unstable();
    sizes
}

fn step(slices: Vec<Arc<EndpointSlice>>, wanted: EndpointsByPorts) -> Vec<Arc<EndpointSlice>> {
    let plan = plan(&service(vec![]), &slices, wanted, "IPv4");
    carry_out(slices, plan)
}

#[test]
fn endpoints_fill_slices_of_a_hundred() {
    let slices = step(vec![], wanted([(80, 0..250)]));
    assert_eq!(sizes(&slices), [50, 100, 100]);
    assert_eq!(
        plan(&service(vec![]), &slices, wanted([(80, 0..250)]), "IPv4"),
        Plan::default()
    );
}

#[test]
fn a_service_without_endpoints_keeps_one_empty_slice() {
    let slices = step(vec![], EndpointsByPorts::new());
    assert_eq!(sizes(&slices), [0]);
    assert_eq!(slices[0].ports.as_deref(), Some(&[][..]));
    assert_eq!(
        plan(&service(vec![]), &slices, EndpointsByPorts::new(), "IPv4"),
        Plan::default()
    );

    let filled = plan(&service(vec![]), &slices, wanted([(80, 0..3)]), "IPv4");
    assert_eq!(
        (
            filled.create.len(),
            filled.update.len(),
            filled.delete.len()
        ),
        (0, 1, 0)
    );
    let emptied = step(carry_out(slices, filled), EndpointsByPorts::new());
    assert_eq!(sizes(&emptied), [0]);
}

#[test]
fn a_new_endpoint_changes_one_slice() {
    let slices = step(vec![], wanted([(80, 0..150)]));
    let plan = plan(&service(vec![]), &slices, wanted([(80, 0..151)]), "IPv4");
    assert_eq!(
        (plan.create.len(), plan.update.len(), plan.delete.len()),
        (0, 1, 0)
    );
    assert_eq!(endpoints(&plan.update[0]).len(), 51);
}

#[test]
fn a_changed_condition_changes_only_its_slice() {
    let slices = step(vec![], wanted([(80, 0..150)]));
    let mut ready = wanted([(80, 0..150)]);
    let targets = &mut ready.get_mut(&port_key(&ports(80))).expect("wanted").1;
    targets[120].conditions = Some(EndpointConditions {
        ready: Some(true),
        ..EndpointConditions::default()
    });
    let plan = plan(&service(vec![]), &slices, ready, "IPv4");
    assert_eq!(
        (plan.create.len(), plan.update.len(), plan.delete.len()),
        (0, 1, 0)
    );
    let changed = endpoints(&plan.update[0])
        .iter()
        .filter(|endpoint| endpoint.conditions.is_some())
        .count();
    assert_eq!(changed, 1);
}

#[test]
fn replacements_go_into_the_slices_that_change_anyway() {
    let slices = step(vec![], wanted([(80, 0..100)]));
    let plan = plan(&service(vec![]), &slices, wanted([(80, 40..140)]), "IPv4");
    assert_eq!(
        (plan.create.len(), plan.update.len(), plan.delete.len()),
        (0, 1, 0)
    );
    assert_eq!(endpoints(&plan.update[0]).len(), 100);
}

#[test]
fn endpoints_with_other_ports_have_slices_of_their_own() {
    let slices = step(vec![], wanted([(80, 0..3), (81, 3..5)]));
    assert_eq!(sizes(&slices), [2, 3]);
    let moved = step(slices, wanted([(81, 0..5)]));
    assert_eq!(sizes(&moved), [5]);
    assert_eq!(moved[0].ports, Some(ports(81)));
}

#[test]
fn labels_of_the_service_reach_its_slices() {
    let slices = step(vec![], wanted([(80, 0..3)]));
    let mut labelled = service(vec![]);
    labelled
        .labels_mut()
        .insert("team".to_owned(), "blue".to_owned());
    labelled
        .labels_mut()
        .insert(MANAGED_BY_LABEL.to_owned(), "someone".to_owned());
    let plan = plan(&labelled, &slices, wanted([(80, 0..3)]), "IPv4");
    let labels = plan.update[0].labels();
    assert_eq!(labels["team"], "blue");
    assert_eq!(labels[MANAGED_BY_LABEL], MANAGER);
    assert_eq!(labels[SERVICE_NAME_LABEL], "web");
    assert!(!labels.contains_key(backend::HEADLESS_LABEL));
}

#[test]
fn slices_of_an_earlier_service_of_the_same_name_are_deleted_and_never_reused() {
    let slices = step(vec![], wanted([(80, 0..3)]));
    let mut later = service(vec![]);
    later.metadata.uid = Some("another".to_owned());
    let plan = plan(&later, &slices, wanted([(80, 0..3)]), "IPv4");
    assert_eq!(
        (plan.create.len(), plan.update.len(), plan.delete.len()),
        (1, 0, 1)
    );
}

#[test]
fn a_placeholder_that_is_reused_keeps_what_its_name_was_made_of() {
    let placeholder = step(vec![], EndpointsByPorts::new());
    let plan = plan(&service(vec![]), &placeholder, wanted([(80, 0..3)]), "IPv4");
    let [reused] = plan.update.as_slice() else {
        panic!("one update: {plan:?}")
    };
    assert_eq!(reused.metadata.name, placeholder[0].metadata.name);
    assert_eq!(reused.metadata.generate_name.as_deref(), Some("web-"));
}

#[test]
fn a_service_that_is_being_deleted_gets_no_new_slices() {
    let slices = step(vec![], wanted([(80, 0..100)]));
    let mut going = service(vec![]);
    going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        jiff::Timestamp::UNIX_EPOCH,
    ));
    let grown = plan(&going, &slices, wanted([(80, 0..150)]), "IPv4");
    assert_eq!(grown, Plan::default());
    let shrunk = plan(&going, &slices, wanted([(80, 0..50)]), "IPv4");
    assert_eq!((shrunk.create.len(), shrunk.update.len()), (0, 1));
}

/// Returns the port and address of each endpoint that the slices should hold.
fn expected(target: &EndpointsByPorts) -> Vec<(i32, String)> {
    let mut all: Vec<_> = target
        .values()
        .flat_map(|(ports, targets)| {
            let port = ports[0].port.unwrap_or_default();
            targets.iter().map(move |e| (port, e.addresses[0].clone()))
        })
        .collect();
    all.sort_unstable();
    all
}

fn held(slices: &[Arc<EndpointSlice>]) -> Vec<(i32, String)> {
    let mut all: Vec<_> = slices
        .iter()
        .flat_map(|slice| {
            let port = slice.ports.as_ref().and_then(|ports| ports.first()?.port);
            let endpoints = endpoints(slice).iter();
            endpoints.map(move |e| (port.unwrap_or_default(), e.addresses[0].clone()))
        })
        .collect();
    all.sort_unstable();
    all
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    /// Whatever the history, each wanted endpoint is in exactly one slice and no slice holds more than a hundred. A
    /// sync writes only the slices that lose or change endpoints, and those that take new ones.
    #[test]
    fn any_history_ends_with_each_endpoint_in_exactly_one_slice_and_costs_few_writes(
        history in proptest::collection::vec((0..150_usize, 0..200_usize, 0..250_usize), 1..20),
    ) {
        let mut slices: Vec<Arc<EndpointSlice>> = Vec::new();
        for (start, count, others) in history {
            let groups = [(80, start..start + count), (81, 500..500 + others)];
            let target = || wanted(groups.clone().into_iter().filter(|(_, range)| !range.is_empty()));
            let (before, after) = (held(&slices), expected(&target()));
            let plan = plan(&service(vec![]), &slices, target(), "IPv4");
            let touched = slices.iter().filter(|slice| {
                let here = held(std::slice::from_ref(slice));
                here.is_empty() || here.iter().any(|one| after.binary_search(one).is_err())
            });
            let new = after.iter().filter(|one| before.binary_search(one).is_err()).count();
            // Each of the two groups may end in a slice that is not full, and one placeholder may be needed.
            let bound = touched.count() + new.div_ceil(MAX_ENDPOINTS) + 3;
            let writes = plan.create.len() + plan.update.len() + plan.delete.len();
            proptest::prop_assert!(writes <= bound, "{writes} writes, {bound} allowed");
            slices = carry_out(slices, plan);
            proptest::prop_assert_eq!(held(&slices), after);
            proptest::prop_assert!(!slices.is_empty());
            proptest::prop_assert!(slices.iter().all(|slice| endpoints(slice).len() <= MAX_ENDPOINTS));
            let again = super::plan(&service(vec![]), &slices, target(), "IPv4");
            proptest::prop_assert_eq!(again, Plan::default());
        }
    }
}
