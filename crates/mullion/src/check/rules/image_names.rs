//! Checks that the kubelet can read the names of images: MUL028.

use mullion_engine::images::ImageRef;

use crate::check::{
    finding::Findings, placeholder::is_placeholder, problem::Problem, subject::Pod,
};

/// Checks the containers of a pod. That a container has an image at all is for the API server to say.
pub(super) fn check(pod: &Pod<'_>, found: &mut Findings) {
    for container in &pod.containers {
        let image = container.image;
        if image.is_empty() || is_placeholder(image) {
            continue;
        }
        if let Err(error) = ImageRef::parse(image) {
            let problem = Problem::InvalidImage {
                why: error.to_string(),
            };
            found.add("MUL028", pod.object, container.path.key("image"), problem);
        }
    }
}
