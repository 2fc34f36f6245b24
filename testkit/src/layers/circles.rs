//! Finds modules that use each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{code, name, sources};

/// Minimum number of uses between modules with the same parent. A smaller number shows that this
/// check does not parse the sources correctly.
const USES_MIN: usize = 50;

/// The names on the way from the crate to a module.
type Module = Vec<String>;

/// A use between two modules with the same parent. Each of both counts with all of its submodules.
struct Use {
    from: String,
    to: String,
    /// The file and the line.
    place: String,
}

/// Asserts that no modules below `module` of the crate at `folder` use each other in a circle. An
/// empty `module` is the whole crate.
///
/// The check compares the modules below each module, each with all of its submodules. So a module
/// and its submodules may use each other. A use is a path that begins with `crate` or `super`. A
/// method of a type, and an item that a module above exports again, name no module and do not
/// count. `tests` are the names of test modules at any depth, whose uses do not count.
///
/// # Panics
/// With all circles, and with the uses that make them.
pub fn assert_no_circles(folder: &str, module: &str, tests: &[&str]) {
    let (circles, uses) = circles(&Path::new(folder).join("src"), module, tests);
    assert!(uses > USES_MIN, "only {uses} uses were found");
    let circles = circles.join("\n");
    assert!(circles.is_empty(), "modules use each other:\n{circles}");
}

/// The circles, and the number of uses that were found.
fn circles(root: &Path, module: &str, tests: &[&str]) -> (Vec<String>, usize) {
    let uses = uses(root, module, tests);
    let count = uses.values().map(Vec::len).sum();
    let circles = uses.iter().flat_map(|(parent, uses)| {
        let parent = match parent.is_empty() {
            true => "crate".to_owned(),
            false => parent.join("::"),
        };
        groups(uses).into_iter().map(move |group| {
            let is_in = |one: &&Use| group.contains(&*one.from) && group.contains(&*one.to);
            let group: Vec<_> = group.iter().copied().collect();
            let mut lines = vec![format!("below {parent}: {}", group.join(", "))];
            lines.extend(uses.iter().filter(is_in).map(|one| {
                let Use { from, to, place } = one;
                format!("    {place}: {from} uses {to}")
            }));
            lines.join("\n")
        })
    });
    (circles.collect(), count)
}

/// The uses between modules with the same parent, by this parent.
fn uses(root: &Path, module: &str, tests: &[&str]) -> BTreeMap<Module, Vec<Use>> {
    let is_test = |module: &Module| module.iter().any(|part| tests.contains(&&**part));
    let top: Module = module.split_terminator("::").map(str::to_owned).collect();
    let folder = top
        .iter()
        .fold(root.to_owned(), |path, part| path.join(part));
    let mut files: Vec<_> = sources(&folder)
        .into_iter()
        .map(|file| (module_of(file.strip_prefix(root).unwrap()), file))
        .collect();
    files.sort();
    let mut known: BTreeSet<_> = files.iter().map(|(module, _)| module.clone()).collect();
    known.extend((0..=top.len()).map(|count| top[..count].to_vec()));
    let mut uses: BTreeMap<Module, Vec<Use>> = BTreeMap::new();
    for (own, file) in files.iter().filter(|(own, _)| !is_test(own)) {
        let code = code(&fs::read_to_string(file).unwrap());
        for (line, path) in paths(&code) {
            let used = resolve(own, &path, &known);
            let both = own.iter().zip(&used);
            let common = both.take_while(|(own, used)| own == used).count();
            let (Some(from), Some(to)) = (own.get(common), used.get(common)) else {
                continue;
            };
            if is_test(&used) {
                continue;
            }
            let file = file.strip_prefix(root).unwrap().display();
            uses.entry(own[..common].to_vec()).or_default().push(Use {
                from: from.clone(),
                to: to.clone(),
                place: format!("{file}:{line}"),
            });
        }
    }
    uses
}

/// The module of a file. `lib.rs` and `main.rs` are the crate itself.
fn module_of(file: &Path) -> Module {
    let file = file.with_extension("");
    let parts = file.iter().map(|part| part.to_str().unwrap().to_owned());
    let mut module: Module = parts.collect();
    module.pop_if(|last| matches!(&**last, "lib" | "main"));
    module
}

/// The module that `path` in the module `own` uses: the deepest one of `known` on the path.
fn resolve(own: &Module, path: &[&str], known: &BTreeSet<Module>) -> Module {
    let mut used = own.clone();
    for part in path {
        match *part {
            "crate" => used.clear(),
            "super" => drop(used.pop()),
            part => {
                used.push(part.to_owned());
                if !known.contains(&used) {
                    used.pop();
                    break;
                }
            }
        }
    }
    used
}

/// The groups of two or more modules in which each module uses all others, directly or through
/// modules between them.
fn groups(uses: &[Use]) -> BTreeSet<BTreeSet<&str>> {
    let mut next = BTreeMap::new();
    for Use { from, to, .. } in uses {
        let next: &mut BTreeSet<&str> = next.entry(&**from).or_default();
        next.insert(to);
    }
    let led_to: BTreeMap<_, _> = next
        .keys()
        .map(|from| (*from, led_to(from, &next)))
        .collect();
    let mut groups = BTreeSet::new();
    for (from, all) in &led_to {
        let leads_back = |to: &&str| led_to.get(to).is_some_and(|all| all.contains(from));
        let group: BTreeSet<_> = all.iter().copied().filter(leads_back).collect();
        if group.len() > 1 {
            groups.insert(group);
        }
    }
    groups
}

/// All modules that `from` uses, directly or through other modules. `next` has the direct uses.
fn led_to<'a>(from: &str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut left: Vec<_> = next.get(from).into_iter().flatten().copied().collect();
    while let Some(one) = left.pop() {
        if found.insert(one) {
            left.extend(next.get(one).into_iter().flatten());
        }
    }
    found
}

/// The paths in `code` that begin with `crate` or `super`, each with its line. Of a group, each
/// element is a path.
fn paths(code: &str) -> Vec<(usize, Vec<&str>)> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        let heads = ["crate::", "super::"].into_iter();
        let Some(begin) = heads.filter_map(|head| code[at..].find(head)).min() else {
            return found;
        };
        let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        at = match code[..at + begin].ends_with(is_part) {
            true => at + begin + 1,
            false => read(code, at + begin, &[], &mut found),
        };
    }
}

/// Adds the paths that begin with `before` and continue at `at`. Returns the end of the last one.
fn read<'a>(
    code: &'a str,
    mut at: usize,
    before: &[&'a str],
    found: &mut Vec<(usize, Vec<&'a str>)>,
) -> usize {
    let mut path = before.to_vec();
    loop {
        let rest = code[at..].trim_start();
        at = code.len() - rest.len();
        if rest.starts_with('{') {
            at += 1;
            while let Some(end) = code[at..].find(|c: char| !c.is_whitespace()) {
                if code[at + end..].starts_with('}') {
                    return at + end + 1;
                }
                at = read(code, at, &path, found);
                // The rest of an element may be `as NAME`.
                at += code[at..].find([',', '}']).unwrap_or(code.len() - at);
                at += usize::from(code[at..].starts_with(','));
            }
            return at;
        }
        let part = name(rest);
        path.extend(Some(part).filter(|part| !part.is_empty()));
        at += part.len();
        match code[at..].starts_with("::") {
            true if !part.is_empty() => at += 2,
            _ => break,
        }
    }
    found.push((code[..at].matches('\n').count() + 1, path));
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The circles below `module` of a crate with these files.
    fn circles_of(test: &str, module: &str, files: &[(&str, &str)]) -> (Vec<String>, usize) {
        let folder = std::env::temp_dir().join(format!("{test}-{}", std::process::id()));
        for (file, text) in files {
            let file = folder.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let found = circles(&folder, module, &["tests"]);
        fs::remove_dir_all(&folder).unwrap();
        found
    }

    #[test]
    fn each_element_of_a_group_is_a_path() {
        let code = "use crate::{\n    a::{b, c::{self, d as e}},\n    f::*,\n};\nuse super::super::g;\n\
                    fn h() -> super::I<crate::j::K> {}\nuse k_super::l;";
        let found: Vec<_> = paths(code)
            .into_iter()
            .map(|(line, path)| (line, path.join("::")))
            .collect();
        let expected = [
            (2, "crate::a::b"),
            (2, "crate::a::c::self"),
            (2, "crate::a::c::d"),
            (3, "crate::f"),
            (5, "super::super::g"),
            (6, "super::I"),
            (6, "crate::j::K"),
        ];
        assert_eq!(found, expected.map(|(line, path)| (line, path.to_owned())));
    }

    #[test]
    fn a_circle_of_two_is_named_with_its_uses() {
        let (circles, uses) = circles_of(
            "two",
            "io",
            &[
                ("io.rs", "mod a;\nmod b;\nmod c;\n"),
                ("io/a.rs", "use super::b::B;\nuse super::c::C;\n"),
                ("io/b.rs", "use super::c;\n\nfn f(_: crate::io::a::A) {}\n"),
                ("io/c.rs", "use crate::base::D;\n"),
            ],
        );
        let expected = "below io: a, b\n    io/a.rs:1: a uses b\n    io/b.rs:3: b uses a";
        assert_eq!((circles, uses), (vec![expected.to_owned()], 4));
    }

    #[test]
    fn a_circle_of_three_is_found_below_a_crate() {
        let (circles, _) = circles_of(
            "three",
            "",
            &[
                ("lib.rs", "use crate::a::A;\n"),
                ("a.rs", "use crate::{b::B, d};\n"),
                ("b.rs", "use super::c;\n"),
                ("c.rs", "use crate::a;\n"),
                ("d.rs", ""),
            ],
        );
        let expected = "below crate: a, b, c\n    a.rs:1: a uses b\n    b.rs:1: b uses c\n    \
                        c.rs:1: c uses a";
        assert_eq!(circles, [expected]);
    }

    #[test]
    fn a_circle_through_submodules_is_one_of_their_parents() {
        let (circles, _) = circles_of(
            "submodules",
            "io",
            &[
                ("io/a.rs", "mod one;\n"),
                ("io/a/one.rs", "use super::super::b::two::Two;\n"),
                ("io/a/two.rs", "use super::one;\n"),
                ("io/b.rs", "mod two;\n"),
                ("io/b/two.rs", "use crate::io::a::A;\n"),
            ],
        );
        let expected = "below io: a, b\n    io/a/one.rs:1: a uses b\n    io/b/two.rs:1: b uses a";
        assert_eq!(circles, [expected]);
    }

    #[test]
    fn submodules_of_a_module_make_a_circle_below_it() {
        let (circles, _) = circles_of(
            "below",
            "io",
            &[
                ("io/a.rs", ""),
                ("io/a/one.rs", "use super::two;\n"),
                ("io/a/two.rs", "use crate::io::a::one::three;\n"),
                ("io/a/one/three.rs", ""),
            ],
        );
        let expected = "below io::a: one, two\n    io/a/one.rs:1: one uses two\n    io/a/two.rs:1: two uses one";
        assert_eq!(circles, [expected]);
    }

    #[test]
    fn a_module_and_its_submodules_may_use_each_other() {
        let (circles, uses) = circles_of(
            "submodule",
            "io",
            &[
                ("io.rs", "use crate::io::a::one::One;\n"),
                ("io/a.rs", "use crate::io::a::one::One;\n"),
                ("io/a/one.rs", "use super::A;\nuse super::super::Io;\n"),
            ],
        );
        assert_eq!((circles, uses), (Vec::new(), 0));
    }

    #[test]
    fn uses_in_tests_make_no_circle() {
        let (circles, uses) = circles_of(
            "tests",
            "io",
            &[
                ("io/a.rs", "use super::b;\n"),
                (
                    "io/b.rs",
                    "use super::a::tests::pair;\n#[cfg(test)]\nmod tests {\n    use crate::io::a;\n}\n",
                ),
                ("io/b/tests.rs", "use crate::io::a;\n"),
                ("io/a/tests.rs", ""),
            ],
        );
        assert_eq!((circles, uses), (Vec::new(), 1));
    }

    #[test]
    fn a_use_after_the_tests_makes_a_circle() {
        let (circles, _) = circles_of(
            "after",
            "io",
            &[
                ("io/a.rs", "use super::b;\n"),
                ("io/b.rs", "mod tests {\n}\n\nuse super::a;\n"),
            ],
        );
        let expected = "below io: a, b\n    io/a.rs:1: a uses b\n    io/b.rs:4: b uses a";
        assert_eq!(circles, [expected]);
    }
}
