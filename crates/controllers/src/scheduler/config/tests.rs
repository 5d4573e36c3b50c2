//! Tests configurations as users write them, and the messages about faulty ones.

use mullion_engine::model::WhenUnsatisfiable;
use mullion_engine::profile::{DefaultSpread, ScoringStrategy};
use mullion_engine::{Plugin, Profile};
use serde_json::{Value, json};

use super::{API_VERSION, Config, KIND};
use crate::scheduler::queue::Backoff;

fn read(profiles: Value) -> Result<Vec<Profile>, String> {
    let document = json!({"apiVersion": API_VERSION, "kind": KIND, "profiles": profiles});
    let config = Config::read(&document);
    config
        .map(|config| config.profiles)
        .map_err(|error| error.to_string())
}

fn plugins(plugins: Value) -> Profile {
    let mut profiles = read(json!([{ "plugins": plugins }])).expect("a valid profile");
    profiles.remove(0)
}

fn args(name: &str, args: Value) -> Result<Profile, String> {
    let profile = json!([{"pluginConfig": [{"name": name, "args": args}]}]);
    read(profile).map(|mut profiles| profiles.remove(0))
}

#[test]
fn a_file_that_says_nothing_means_the_default_profile() {
    let config = Config::read(&json!({"apiVersion": API_VERSION, "kind": KIND})).expect("valid");
    assert_eq!(config.profiles, [Profile::default()]);
    assert_eq!(config.backoff, Backoff::default());
    assert_eq!(read(json!([{}])), Ok(vec![Profile::default()]));
}

#[test]
fn a_file_reads_as_the_documentation_shows_it() {
    let text = r"
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: false
podMaxBackoffSeconds: 30
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  plugins:
    score:
      disabled: [{name: PodTopologySpread}]
      enabled: [{name: NodeResourcesFit, weight: 5}]
  pluginConfig:
  - name: NodeResourcesFit
    args:
      apiVersion: kubescheduler.config.k8s.io/v1
      kind: NodeResourcesFitArgs
      ignoredResourceGroups: [example.com]
      scoringStrategy:
        type: RequestedToCapacityRatio
        resources: [{name: example.com/gpu, weight: 3}, {name: cpu}]
        requestedToCapacityRatio:
          shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]
  - name: PodTopologySpread
    args:
      defaultingType: List
      defaultConstraints:
      - {maxSkew: 2, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: ScheduleAnyway}
";
    let document: Value = serde_saphyr::from_str(text).expect("YAML");
    let config = Config::read(&document).expect("valid");
    assert_eq!(config.backoff.max_seconds, 30);
    let [default, packing] = config.profiles.as_slice() else {
        panic!("two profiles");
    };
    assert_eq!(*default, Profile::default());
    assert_eq!(packing.scheduler_name, "packing");
    assert_eq!(packing.scores[&Plugin::NodeResourcesFit], 5);
    assert!(!packing.scores.contains_key(&Plugin::PodTopologySpread));
    assert!(packing.filters.contains(&Plugin::PodTopologySpread));
    let points = vec![(0, 0), (100, 10)];
    let strategy = ScoringStrategy::RequestedToCapacityRatio(points);
    assert_eq!(packing.fit.strategy, strategy);
    let resources = [("example.com/gpu".to_owned(), 3), ("cpu".to_owned(), 1)];
    assert_eq!(packing.fit.resources, resources);
    let DefaultSpread::List(constraints) = &packing.default_spread else {
        panic!("a list");
    };
    assert_eq!(
        constraints[0].when_unsatisfiable,
        WhenUnsatisfiable::ScheduleAnyway
    );
}

#[test]
fn multi_point_turns_plugins_on_and_off_everywhere_and_points_have_the_last_word() {
    let off = plugins(json!({"multiPoint": {"disabled": [{"name": "NodeAffinity"}]}}));
    assert!(!off.filters.contains(&Plugin::NodeAffinity));
    assert!(!off.scores.contains_key(&Plugin::NodeAffinity));

    let only = plugins(json!({
        "multiPoint": {"disabled": [{"name": "*"}], "enabled": [{"name": "TaintToleration"}, {"name": "NodeResourcesFit", "weight": 7}]},
        "queueSort": {"enabled": [{"name": "PrioritySort"}]},
        "bind": {"enabled": [{"name": "DefaultBinder"}]},
    }));
    let filters = [Plugin::TaintToleration, Plugin::NodeResourcesFit];
    assert_eq!(only.filters, filters);
    let scores = [(Plugin::TaintToleration, 1), (Plugin::NodeResourcesFit, 7)];
    assert_eq!(only.scores, scores.into());
    assert!(only.post_filters.is_empty());

    let again = plugins(json!({"multiPoint": {"enabled": [{"name": "TaintToleration"}]}}));
    assert_eq!(
        again.scores[&Plugin::TaintToleration],
        1,
        "told again without a weight"
    );

    let point = plugins(json!({
        "multiPoint": {"enabled": [{"name": "ImageLocality", "weight": 9}]},
        "filter": {"disabled": [{"name": "NodePorts"}]},
        "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "ImageLocality", "weight": 4}]},
        "postFilter": {"disabled": [{"name": "DefaultPreemption"}]},
    }));
    assert!(!point.filters.contains(&Plugin::NodePorts));
    assert_eq!(point.scores, [(Plugin::ImageLocality, 4)].into());
    assert_eq!(point.post_filters, [Plugin::DynamicResources]);
}

#[test]
fn pull_time_scores_only_where_a_file_names_it() {
    assert!(!plugins(json!({})).scores.contains_key(&Plugin::PullTime));
    for place in ["score", "multiPoint"] {
        let on = plugins(json!({place: {"enabled": [{"name": "PullTime", "weight": 3}]}}));
        assert_eq!(on.scores[&Plugin::PullTime], 3, "{place}");
        assert_eq!(on.scores[&Plugin::ImageLocality], 1, "{place}");
        assert!(!on.filters.contains(&Plugin::PullTime));
    }
}

#[test]
fn filters_are_asked_in_the_order_in_which_they_are_told() {
    let told_again = plugins(json!({
        "filter": {"enabled": [{"name": "NodeResourcesFit"}, {"name": "NodePorts"}]},
        "postFilter": {"enabled": [{"name": "DefaultPreemption"}]},
    }));
    let mut filters = Profile::FILTERS.to_vec();
    let first = [Plugin::NodeResourcesFit, Plugin::NodePorts];
    filters.retain(|own| !first.contains(own));
    assert_eq!(told_again.filters, [first.to_vec(), filters].concat());
    let post_filters = [Plugin::DefaultPreemption, Plugin::DynamicResources];
    assert_eq!(told_again.post_filters, post_filters);

    let none_but = plugins(json!({"filter": {
        "disabled": [{"name": "*"}],
        "enabled": [{"name": "VolumeZone"}, {"name": "TaintToleration"}],
    }}));
    let told = [Plugin::VolumeZone, Plugin::TaintToleration];
    assert_eq!(none_but.filters, told);
    assert_eq!(none_but.pre_filters, Profile::PRE_FILTERS);

    let last = plugins(json!({
        "multiPoint": {"disabled": [{"name": "NodeName"}]},
        "filter": {"enabled": [{"name": "NodeName"}, {"name": "InterPodAffinity"}]},
        "preFilter": {"disabled": [{"name": "VolumeBinding"}]},
    }));
    assert_eq!(last.filters.first(), Some(&Plugin::InterPodAffinity));
    assert_eq!(last.filters.last(), Some(&Plugin::NodeName));
    assert!(!last.pre_filters.contains(&Plugin::VolumeBinding));
    assert!(last.filters.contains(&Plugin::VolumeBinding));
}

#[test]
fn what_is_wrong_is_refused_with_its_path_and_what_is_allowed() {
    let refusals = [
        (
            read(json!([{"plugin": {}}])),
            "profiles[0].plugin: unknown field, allowed here: schedulerName, percentageOfNodesToScore, plugins, pluginConfig",
        ),
        (
            read(json!([{"schedulerName": 3}])),
            "profiles[0].schedulerName: Invalid value: 3: must be text",
        ),
        (
            read(json!([{"schedulerName": "a"}, {}])),
            "profiles[1].schedulerName: Required value",
        ),
        (
            read(json!([{"schedulerName": "a"}, {"schedulerName": "a"}])),
            "profiles[1].schedulerName: Duplicate value: \"a\"",
        ),
        (
            read(json!([{"plugins": {"filter": {"enabled": [{"name": "NodeRessourcesFit"}]}}}])),
            "profiles[0].plugins.filter.enabled[0]: Invalid value: \"NodeRessourcesFit\": FilterPlugin \"NodeRessourcesFit\" does not exist",
        ),
        (
            read(json!([{"plugins": {"filter": {"enabled": [{"name": "ImageLocality"}]}}}])),
            "profiles[0].plugins.filter.enabled[0]: Invalid value: \"ImageLocality\": plugin \"ImageLocality\" does not extend FilterPlugin plugin",
        ),
        (
            read(json!([{"plugins": {"preFilter": {"enabled": [{"name": "TaintToleration"}]}}}])),
            "profiles[0].plugins.preFilter.enabled[0]: Invalid value: \"TaintToleration\": plugin \"TaintToleration\" does not extend PreFilterPlugin plugin",
        ),
        (
            read(json!([{"percentageOfNodesToScore": 101}])),
            "profiles[0].percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
        ),
    ];
    for (found, expected) in refusals {
        assert_eq!(found, Err(expected.to_owned()));
    }
    let kind = Config::read(&json!({"apiVersion": API_VERSION, "kind": "Pod"}));
    let expected =
        "kind: Unsupported value: \"Pod\": supported values: \"KubeSchedulerConfiguration\"";
    assert_eq!(kind.expect_err("refused").to_string(), expected);
}

#[test]
fn a_profile_that_can_neither_sort_nor_bind_is_refused() {
    let all = json!([{"name": "*"}]);
    let unsorted =
        "only one queue sort plugin required for profile with scheduler name \"own\", but got 0";
    let unbound = "at least one bind plugin is needed for profile with scheduler name \"own\"";
    let refusals = [
        (
            json!({"queueSort": {"disabled": all}}),
            "queueSort",
            unsorted,
        ),
        (
            json!({"queueSort": {"disabled": [{"name": "PrioritySort"}]}}),
            "queueSort",
            unsorted,
        ),
        (
            json!({"multiPoint": {"disabled": all}, "bind": {"enabled": [{"name": "DefaultBinder"}]}}),
            "queueSort",
            unsorted,
        ),
        (json!({"bind": {"disabled": all}}), "bind", unbound),
        (
            json!({"multiPoint": {"disabled": [{"name": "DefaultBinder"}]}}),
            "bind",
            unbound,
        ),
    ];
    for (plugins, point, why) in refusals {
        let found = read(json!([{"schedulerName": "own", "plugins": plugins}]));
        let expected = format!("profiles[0].plugins.{point}: {why}");
        assert_eq!(found, Err(expected), "{plugins}");
    }
    plugins(json!({"queueSort": {"disabled": all, "enabled": [{"name": "PrioritySort"}]}}));
    let found = read(json!([{"plugins": {"bind": {"enabled": [{"name": "NodeName"}]}}}]));
    let expected = "profiles[0].plugins.bind.enabled[0]: Invalid value: \"NodeName\": plugin \"NodeName\" does not extend BindPlugin plugin";
    assert_eq!(found, Err(expected.to_owned()));
}

#[test]
fn wrong_arguments_are_refused_in_upstreams_words() {
    let at = |rest: &str| format!("profiles[0].pluginConfig[0].args{rest}");
    let refusals = [
        (
            args("InterPodAffinity", json!({"hardPodAffinityWeight": 101})),
            at(".hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"),
        ),
        (
            args(
                "NodeResourcesFit",
                json!({"scoringStrategy": {"type": "Least"}}),
            ),
            at(
                ".scoringStrategy.type: Unsupported value: \"Least\": supported values: \"LeastAllocated\", \"MostAllocated\", \"RequestedToCapacityRatio\"",
            ),
        ),
        (
            args(
                "NodeResourcesFit",
                json!({"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 101}]}}),
            ),
            at(
                ".scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu not in valid range (0, 100]",
            ),
        ),
        (
            args(
                "NodeResourcesFit",
                json!({"scoringStrategy": {"type": "RequestedToCapacityRatio", "requestedToCapacityRatio": {"shape": [
                    {"utilization": 50, "score": 1}, {"utilization": 50, "score": 2},
                ]}}}),
            ),
            at(
                ".scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 50: values must be sorted in increasing order",
            ),
        ),
        (
            args(
                "PodTopologySpread",
                json!({"defaultConstraints": [{"maxSkew": 1}]}),
            ),
            at(
                ".defaultingType: Invalid value: \"System\": when .defaultConstraints are not empty",
            ),
        ),
        (
            args(
                "PodTopologySpread",
                json!({"defaultingType": "List", "defaultConstraints": [
                    {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}},
                ]}),
            ),
            at(
                ".defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod",
            ),
        ),
        (
            args(
                "NodeResourcesBalancedAllocation",
                json!({"resources": [{"name": "cpu", "weight": 2}]}),
            ),
            at(".resources[0].weight: Invalid value: 2: must be 1"),
        ),
        (
            args("NodeAffinity", json!({"addedAffinity": {"required": {}}})),
            at(
                ".addedAffinity.required: unknown field, allowed here: requiredDuringSchedulingIgnoredDuringExecution, preferredDuringSchedulingIgnoredDuringExecution",
            ),
        ),
    ];
    for (found, expected) in refusals {
        assert_eq!(found, Err(expected));
    }
}

#[test]
fn everything_that_is_wrong_is_told_at_once() {
    let told = |document: Value| {
        let errors = Config::read(&document).expect_err("wrong");
        let paths: Vec<_> = errors.0.into_iter().map(|error| error.path).collect();
        paths.join(" ")
    };
    let head = json!({"apiVersion": API_VERSION, "kind": KIND});
    let with = |fields: Value| {
        let mut document = head.clone();
        let fields = fields.as_object().cloned().unwrap_or_default();
        document.as_object_mut().expect("an object").extend(fields);
        document
    };
    assert_eq!(
        told(with(
            json!({"paralelism": 1, "profiles": [{"schedulerNam": "a"}, {"plugins": 7}]})
        )),
        "paralelism profiles[0].schedulerNam profiles[1].plugins"
    );
    let profile = json!({
        "schedulerName": "a",
        "plugins": {"filter": {"enabled": [{"name": "NodePort"}, {"name": "ImageLocality"}]}, "score": {"enabled": [{"name": "Nothing"}]}},
        "pluginConfig": [{"name": "Nothing"}, {"name": "NodeResourcesFit", "args": {"a": 1, "b": 2}}, {"name": "VolumeBinding", "args": {"bindTimeoutSeconds": -1}}],
    });
    assert_eq!(
        told(with(
            json!({"parallelism": 0, "profiles": [profile, {"schedulerName": "a"}]})
        )),
        "parallelism profiles[0].plugins.filter.enabled[0] profiles[0].plugins.filter.enabled[1] profiles[0].plugins.score.enabled[0] \
         profiles[0].pluginConfig[0].name profiles[0].pluginConfig[1].args.a profiles[0].pluginConfig[1].args.b \
         profiles[0].pluginConfig[2].args.bindTimeoutSeconds profiles[1].schedulerName"
    );
}
