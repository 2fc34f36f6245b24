//! Layers of a crate that a test enforces, by the uses of `crate::` in its sources.

use std::fs;
use std::path::{Path, PathBuf};

/// Fewer uses than this are a sign that the sources are not read as they are written.
const USES_MIN: usize = 200;

/// What may use what.
#[derive(Debug)]
pub struct Layers<'a> {
    /// The modules of `src`, from the ground up: each uses its own layer and those below it.
    pub layers: &'a [&'a [&'a str]],
    /// Modules of `src` that use whatever they like.
    pub beside: &'a [&'a str],
    /// Names of modules that hold tests alone, wherever they are; these use whatever they like, too.
    pub tests: &'a [&'a str],
}

impl Layers<'_> {
    /// Fails where a module of the crate at `folder` has no layer, or uses one above its own.
    ///
    /// # Panics
    /// With all that is wrong.
    pub fn assert(&self, folder: &str) {
        let (wrong, uses) = self.wrong(&Path::new(folder).join("src"));
        assert!(uses > USES_MIN, "only {uses} uses are seen");
        let wrong = wrong.join("\n");
        assert!(wrong.is_empty(), "against the layers:\n{wrong}");
    }

    /// What is against the layers, and how many uses were seen.
    fn wrong(&self, root: &Path) -> (Vec<String>, usize) {
        let (mut wrong, mut uses) = (Vec::new(), 0);
        for path in sources(root) {
            let place = path.strip_prefix(root).unwrap();
            let parts: Vec<_> = place
                .iter()
                .map(|part| part.to_str().unwrap().trim_end_matches(".rs"))
                .collect();
            let place = place.display();
            if self.beside.contains(&parts[0]) {
                continue;
            }
            let Some(own) = self.layer_of(parts[0]) else {
                wrong.push(format!("{place}: has no layer"));
                continue;
            };
            if parts.iter().any(|part| self.tests.contains(part)) {
                continue;
            }
            for (number, line) in code(&fs::read_to_string(&path).unwrap()) {
                for name in named(line) {
                    uses += 1;
                    if self.layer_of(name).is_none_or(|layer| layer > own) {
                        wrong.push(format!("{place}:{number}: {} uses crate::{name}", parts[0]));
                    }
                }
            }
        }
        (wrong, uses)
    }

    fn layer_of(&self, module: &str) -> Option<usize> {
        let mut layers = self.layers.iter();
        layers.position(|layer| layer.contains(&module))
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false => vec![path],
        })
        .collect()
}

/// The lines before the tests of the file, which are its last item, without comments.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_tests = |line: &str| line.ends_with("mod tests {") && !line.starts_with(' ');
    let lines = text.lines().take_while(move |line| !is_tests(line));
    lines
        .zip(1..)
        .map(|(line, number)| (number, line.split("//").next().unwrap_or_default()))
}

/// The modules below the root that a line names: `crate::net::dial` names `net`. A list, `crate::{net, io}`, names none
/// and so has no layer: it would hide its names.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split("crate::").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_wherever_a_line_has_them_and_lists_have_none() {
        let names = |line| named(line).collect::<Vec<_>>();
        assert_eq!(names("use crate::net::dial;"), ["net"]);
        assert_eq!(names("fn f(a: crate::io::A) -> crate::b {"), ["io", "b"]);
        assert_eq!(names("use crate::{net, io};"), [""]);
    }

    #[test]
    fn comments_and_tests_are_no_uses() {
        let text = "use crate::a; // crate::b\npub(crate) mod tests {\n use crate::c;\n}\n";
        let lines: Vec<_> = code(text).collect();
        assert_eq!(lines, [(1, "use crate::a; ")]);
    }

    #[test]
    fn what_is_against_the_layers_is_named_with_its_line() {
        let folder = std::env::temp_dir().join(format!("layers-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (file, text) in [
            ("a.rs", "\nuse crate::b;\n"),
            ("b.rs", "use crate::a;\n"),
            ("c.rs", ""),
            ("main.rs", "use crate::c;\n"),
        ] {
            fs::write(folder.join(file), text).unwrap();
        }
        let layers = Layers {
            layers: &[&["a"], &["b"]],
            beside: &["main"],
            tests: &[],
        };
        let (mut wrong, uses) = layers.wrong(&folder);
        wrong.sort();
        assert_eq!(wrong, ["a.rs:2: a uses crate::b", "c.rs: has no layer"]);
        assert_eq!(uses, 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
