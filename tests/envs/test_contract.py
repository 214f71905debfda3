"""Every id keeps Gymnasium's promises, in each form: single, in a batch, as SB3's `VecEnv`."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence
from numpy.typing import NDArray

from inframind_gym import ENVIRONMENTS, register_all
from inframind_gym.errors import ActionError, ConfigError
from inframind_gym.teams.state import Rows
from tests.golden.envs import VARIANTS

IDS = sorted({family for family, _ in VARIANTS.values()})
FIRST = {family: arguments for family, arguments in reversed(VARIANTS.values())}
each_case = pytest.mark.parametrize("case", VARIANTS)
each_id = pytest.mark.parametrize("name", IDS)


def test_every_simulated_id_is_played() -> None:
    assert [f"InfraMind-{name}-v0" for name in IDS] == sorted(
        n for n in ENVIRONMENTS if "Live" not in n
    )


def make(case: str, **more: Any) -> gym.Env[Any, Any]:
    family, arguments = VARIANTS[case]
    return gym.make(f"InfraMind-{family}-v0", **arguments, **more)


def make_batch(case: str, num_envs: int, **more: Any) -> Any:
    family, arguments = VARIANTS[case]
    return gym.make_vec(f"InfraMind-{family}-v0", num_envs=num_envs, **arguments, **more)


def choose(space: gym.Space[Any], info: dict[str, Any]) -> Any:
    """Sample an open action."""
    mask = info.get("action_mask")
    return space.sample() if mask is None else space.sample(mask=mask)


def plain(context: Any) -> Any:
    """The view of a policy as plain data; numbers by their bits, since some are NaN."""
    if not isinstance(context, Rows):
        return context
    return [a.view("i8") if a.dtype.kind == "f" else a for a in context.arrays().values()]


def same(one: Any, other: Any) -> bool:
    return bool(data_equivalence(one, other))


def play(env: gym.Env[Any, Any], seed: int, steps: int = 60) -> list[Any]:
    """Steps of one episode: observation, reward, info, context."""
    env.action_space.seed(seed)
    observation, info = env.reset(seed=seed)
    inner: Any = env.unwrapped
    trace: list[Any] = [(observation, 0.0, info, plain(inner.context()))]
    for _ in range(steps):
        observation, reward, over, cut, info = env.step(choose(env.action_space, info))
        assert observation in env.observation_space
        assert (type(reward), type(over), type(cut)) == (float, bool, bool)
        assert isinstance(info["cost"], float) and info["cost"] >= 0.0
        if "rewards" in info:
            assert reward == pytest.approx(sum(info["rewards"].values()))
        trace.append((observation, reward, info, plain(inner.context())))
        if over or cut:
            assert info["episode_cost"] == pytest.approx(sum(step[2]["cost"] for step in trace))
            with pytest.raises(gym.error.ResetNeeded):
                env.step(env.action_space.sample())
            break
    return trace


@each_case
def test_check_env_passes_without_a_warning(case: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = VARIANTS[case][1] is FIRST[VARIANTS[case][0]]  # of its id: it is drawn, too
        check_env(make(case, render_mode="rgb_array").unwrapped, skip_render_check=not first)


@each_id
def test_stable_baselines3_check_env_passes_without_a_warning(name: str) -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    flat = {"observation": "flat"} if name in ("Assignment", "Placement") else {}
    env = gym.make(f"InfraMind-{name}-v0", **(FIRST[name] | flat))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(env.unwrapped)


def test_registering_again_is_harmless() -> None:
    before = {name: gym.registry[name] for name in ENVIRONMENTS}
    register_all()
    assert {name: gym.registry[name] for name in ENVIRONMENTS} == before


@each_id
def test_the_constructors_name_every_argument(name: str) -> None:
    entry = ENVIRONMENTS[f"InfraMind-{name}-v0"]
    assert entry.vector is not None
    env, batch = map(gym.envs.registration.load_env_creator, (entry.single, entry.vector))
    fields = set(env.arguments.model_fields)  # type: ignore[attr-defined]
    assert set(inspect.signature(env).parameters) == fields | {"render_mode"}
    assert set(inspect.signature(batch).parameters) == fields | {"num_envs", "num_threads"}


@each_case
def test_a_spec_survives_json_and_a_seed_gives_the_same_bits(case: str) -> None:
    env = make(case)
    assert env.spec is not None
    again = gym.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.observation_space == env.observation_space
    assert again.action_space == env.action_space
    first = play(env, 3)
    assert same(first, play(again, 3))
    assert not same(first, play(env, 4))
    assert same(first, play(env, 3))  # used, it is as good as new


@each_case
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_on_alone(case: str, copied: Any) -> None:
    env: Any = make(case).unwrapped
    if hasattr(env.simulation, "executor_spec"):
        pytest.skip("an executor can be foreign code")
    play(env, 5, 3)
    env.reset(seed=5)
    other = copied(env)
    actions = [env.action_space.sample() for _ in range(4)]
    traces = []
    for one in (env, other):
        steps, over = [], False
        for action in actions:
            if not over:
                *step, info = one.step(action)
                over = step[2] or step[3]
                steps.append((*step, info, plain(one.context())))
        traces.append(steps)
    assert same(*traces)


@each_case
@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_of_the_batch_is_a_single_environment(case: str, threads: int) -> None:
    """Over autoresets too: same bits, rewards, costs, ends, masks and infos, in every thread."""
    num = 4 if threads == 1 else 70
    batch = make_batch(case, num, num_threads=threads)
    singles = {row: make(case) for row in (0, num - 1)}
    shown, infos = batch.reset(seed=7)
    for row, env in singles.items():
        assert same(of_row(shown, row), env.reset(seed=7 + row)[0])
    batch.action_space.seed(1)
    for _ in range(40):
        masks = infos.get("action_mask")
        action = batch.action_space.sample(mask=masks) if masks else batch.action_space.sample()
        shown, rewards, terminations, truncations, infos = batch.step(action)
        for row, env in singles.items():
            observation, reward, terminated, truncated, info = env.step(action[row])
            assert (terminations[row], truncations[row]) == (terminated, truncated)
            assert rewards[row] == reward
            if terminated or truncated:
                assert same(infos["final_obs"][row], observation)
                compare(infos["final_info"], info, row)
                observation, info = env.reset()
            else:
                compare(infos, info, row)
            assert same(of_row(shown, row), observation)
            if masks:
                assert same(infos["action_mask"][row], info["action_mask"])
            inner: Any = env.unwrapped
            assert np.array_equal(batch.unwrapped.action_masks()[row], inner.action_masks())


def of_row(shown: Any, row: int) -> Any:
    if isinstance(shown, dict):
        return {name: values[row] for name, values in shown.items()}
    return shown[row]


def compare(infos: dict[str, Any], info: dict[str, Any], row: int) -> None:
    """Compare what infos of a batch and of a single environment both have."""
    for key in (set(infos) & set(info)) - {"action_mask"}:
        if isinstance(info[key], dict):
            assert {name: infos[key][name][row] for name in info[key]} == info[key]
        elif not isinstance(info[key], str):  # the batch has numbers in place of texts
            assert np.array_equal(infos[key][row], info[key]), key


@each_case
def test_the_batch_hands_out_no_memory_twice(case: str) -> None:
    batch = make_batch(case, 3)
    kept: list[tuple[NDArray[Any], bytes]] = []

    def keep(*values: Any) -> None:
        for value in values:
            if isinstance(value, dict):
                keep(*(part for name, part in value.items() if name != "action_mask"))
            elif isinstance(value, tuple | list):
                keep(*value)
            elif isinstance(value, np.ndarray) and value.dtype != object and value.size:
                assert not any(np.shares_memory(value, other) for other, _ in kept)
                kept.append((value, value.tobytes()))

    observations, infos = batch.reset(seed=0)
    keep(observations, infos)
    for _ in range(12):
        observations, rewards, over, cut, infos = batch.step(batch.action_space.sample())
        final = [shown for shown in infos.pop("final_obs", ()) if shown is not None]
        keep(observations, rewards, over, cut, infos, final)
        keep(batch.unwrapped.action_masks(), plain(batch.unwrapped.contexts()))
    assert all(array.tobytes() == before for array, before in kept)


@each_case
def test_what_is_returned_is_the_caller_s(case: str) -> None:
    """Writing into it changes nothing that is returned later."""
    clean, scribbled = make(case), make(case)
    expected = play(clean, 5, 12)
    scribbled.action_space.seed(5)
    observation, info = scribbled.reset(seed=5)
    for step, (clean_observation, reward, clean_info, _) in enumerate(expected):
        assert same(observation, clean_observation) and same(info, clean_info)
        if step + 1 == len(expected):
            break
        action = choose(scribbled.action_space, info)
        inner: Any = scribbled.unwrapped
        mask = info.get("action_mask", ())
        masks = mask if isinstance(mask, tuple) else (mask,)
        shown = observation.values() if isinstance(observation, dict) else [observation]
        for array in (*shown, *masks, inner.action_masks()):
            if isinstance(array, np.ndarray):
                array[...] = 0
        observation, reward, _, _, info = scribbled.step(action)
        assert reward == expected[step + 1][1]


@each_id
def test_pictures_change_with_the_episode_and_nothing_else(name: str) -> None:
    envs = [
        gym.make(f"InfraMind-{name}-v0", **FIRST[name], render_mode=mode).unwrapped
        for mode in ("rgb_array", "ansi", None)
    ]
    pictures = []
    infos = [env.reset(seed=6)[1] for env in envs]
    envs[0].action_space.seed(0)
    for _ in range(3):
        pictures.append(envs[0].render())
        action = choose(envs[0].action_space, infos[0])
        steps = [env.step(action) for env in envs]
        assert same(steps[0], steps[2]) and same(steps[1], steps[2])
        if steps[0][2] or steps[0][3]:
            break
        infos = [step[4] for step in steps]
    pictures.append(envs[0].render())
    assert pictures[0].shape == (540, 960, 3)  # type: ignore[union-attr]
    assert not np.array_equal(pictures[0], pictures[-1])  # type: ignore[arg-type]
    assert f"InfraMind {name[:5]}" in str(envs[1].render()) and envs[2].render() is None


@each_id
@pytest.mark.parametrize("action", [99, -1, 0.5, [1, 2], None, "a"], ids=str)
def test_wrong_actions_are_refused(name: str, action: Any) -> None:
    env = gym.make(f"InfraMind-{name}-v0", **FIRST[name]).unwrapped
    env.reset(seed=0)
    with pytest.raises(ActionError):
        env.step(action)


@each_id
def test_wrong_arguments_options_and_modes_are_named(name: str) -> None:
    env_id = f"InfraMind-{name}-v0"
    with pytest.warns(UserWarning), pytest.raises(ConfigError, match="unknown render_mode"):
        gym.make(env_id, render_mode="rgb_aray")
    with pytest.raises(ConfigError, match="unknown option"):
        gym.make(env_id, **FIRST[name]).unwrapped.reset(options={"scenarios": "S1"})
    for made in (gym.make, gym.make_vec):
        with pytest.raises(ConfigError, match="no_argument: unknown key"):
            made(env_id, no_argument=1)
    with pytest.raises(ConfigError, match="num_envs"):
        gym.make_vec(env_id, num_envs=0)
    with pytest.raises(ConfigError, match="seeds for 2 environments"):
        gym.make_vec(env_id, num_envs=2, **FIRST[name]).reset(seed=[1])
