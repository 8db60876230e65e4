"""AdaPeD's client: its loss, its steps against finite differences, and what it sends."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from shuffle_plugins.mechanisms import get
from shuffle_plugins.optim import AdaPeD, ClientModels
from shuffle_plugins.optim.adaped import DISSIMILARITY, distillation_loss, prior_loss
from shuffle_plugins.protocols import PoissonBinomialSum

NETWORK = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
INPUTS = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0])


def adaped(**changes):
    rates = {"personal_rate": 0.1, "global_rate": 0.2, "dissimilarity_rate": 0.3, "least_dissimilarity": 0.01}
    return AdaPeD(predict=partial(functional_call, NETWORK), **(rates | changes))


def parameters(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        for name, value in NETWORK.named_parameters()
    }


def models(psi=0.8):
    return ClientModels(parameters(1), parameters(2), torch.tensor(psi, dtype=torch.float64))


def slopes(loss, at):
    """Derivatives of a loss in every entry of some parameters, by central differences."""
    found = {}
    for name, value in at.items():
        slope = torch.zeros_like(value)
        for place in range(value.numel()):
            sides = []
            for step in (1e-6, -1e-6):
                shifted = {**at, name: value.clone()}
                shifted[name].view(-1)[place] += step
                sides.append(float(loss(shifted)))
            slope.view(-1)[place] = (sides[0] - sides[1]) / 2e-6
        found[name] = slope
    return found


def assert_close(one, other):
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1e-7)


def test_distillation_is_the_divergence_of_global_outputs_from_personal_ones():
    ours, theirs = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[math.log(4), 0.0]])
    expected = 0.25 * math.log(0.25 / 0.8) + 0.75 * math.log(
        0.75 / 0.2
    )  # by hand: (1/4, 3/4) against (4/5, 1/5)
    assert float(distillation_loss(ours, theirs)) == pytest.approx(expected, rel=1e-6)
    assert float(distillation_loss(ours, ours + 5)) == pytest.approx(0, abs=1e-6)


def test_a_step_descends_the_loss_in_each_of_the_three_in_turn():
    method, before = adaped(), models()
    after = method.step(before, INPUTS, LABELS)
    # θ: minus η1 times the slope of the whole loss, in which ½ log 2ψ is a constant.
    slope = slopes(lambda own: method.loss(before._replace(personal_model=own), INPUTS, LABELS), before[0])
    assert_close(after.personal_model, {n: v - 0.1 * slope[n] for n, v in before.personal_model.items()})
    # μ: against the new θ.
    between = before._replace(personal_model=after.personal_model)
    slope = slopes(lambda all_: method.loss(between._replace(global_model=all_), INPUTS, LABELS), before[1])
    assert_close(after.global_model, {n: v - 0.2 * slope[n] for n, v in before.global_model.items()})
    # ψ: against both.
    between = between._replace(global_model=after.global_model)
    slope = slopes(
        lambda psi: method.loss(between._replace(dissimilarity=psi["psi"][0]), INPUTS, LABELS),
        {"psi": before.dissimilarity.view(1)},
    )
    torch.testing.assert_close(
        after.dissimilarity, before.dissimilarity - 0.3 * slope["psi"][0], rtol=1e-5, atol=1e-7
    )


def test_psi_settles_where_it_equals_the_distance_of_the_models():
    """The derivative of ½ log 2ψ + KD/2ψ is zero at ψ = KD."""
    method, now = adaped(), models()
    for _ in range(2000):
        now = method.dissimilarity_step(now, INPUTS)
    scores = (functional_call(NETWORK, now.personal_model, (INPUTS,)),)
    distance = distillation_loss(*scores, functional_call(NETWORK, now.global_model, (INPUTS,)))
    assert float(now.dissimilarity) == pytest.approx(float(distance), rel=1e-6)


def test_steps_are_cut_to_their_norms():
    method, before = adaped(global_clip=1e-3, dissimilarity_clip=1e-2), models()
    after = method.step(before, INPUTS, LABELS)
    moved = sum(float((after.global_model[n] - v).square().sum()) for n, v in before.global_model.items())
    assert math.sqrt(moved) == pytest.approx(0.2 * 1e-3)
    assert abs(float(after.dissimilarity - before.dissimilarity)) == pytest.approx(0.3 * 1e-2)


def test_many_clients_at_once_are_each_by_itself():
    method = adaped(global_clip=0.5)
    clients = [
        ClientModels(parameters(10 + i), parameters(2), torch.tensor(0.5 + i).double()) for i in range(3)
    ]
    stacked = ClientModels(
        {n: torch.stack([c.personal_model[n] for c in clients]) for n in parameters(1)},
        {n: torch.stack([c.global_model[n] for c in clients]) for n in parameters(1)},
        torch.stack([c.dissimilarity for c in clients]),
    )
    together = vmap(method.step)(stacked, INPUTS.expand(3, 7, 3), LABELS.expand(3, 7))
    for place, client in enumerate(clients):
        alone = method.train(client, [(INPUTS, LABELS)])
        assert_close({n: v[place] for n, v in together.personal_model.items()}, alone.personal_model)
        assert_close({n: v[place] for n, v in together.global_model.items()}, alone.global_model)
        torch.testing.assert_close(together.dissimilarity[place], alone.dissimilarity)


def test_what_is_sent_is_the_global_model_and_psi_and_nothing_of_the_personal_model():
    method, now = adaped(dissimilarity_scale=0.25), models()
    sent = method.arrays(now)
    assert list(sent) == [*now.global_model, DISSIMILARITY]
    assert float(sent[DISSIMILARITY]) == 0.25 * 0.8
    other = method.arrays(now._replace(personal_model=parameters(99)))
    assert all(torch.equal(sent[name], other[name]) for name in sent)
    back = method.received(sent, personal_model=now.personal_model)
    assert_close(back.personal_model, now.personal_model)
    assert_close(back.global_model, now.global_model)
    assert float(back.dissimilarity) == pytest.approx(0.8)
    assert_close(method.received(sent).personal_model, now.global_model)  # the first round starts at μ


def flat(arrays):
    return torch.cat([value.reshape(-1) for value in arrays.values()])


def test_psi_is_in_the_vector_that_is_clipped_and_randomised():
    """A change of ψ alone comes out of the mechanism as the last coordinate, with the noise of all others."""
    method, before = adaped(), models()
    after = before._replace(dissimilarity=before.dissimilarity + 5)
    update = flat(method.arrays(after)) - flat(method.arrays(before))
    assert int(update.nonzero().flatten()) == len(update) - 1
    total = PoissonBinomialSum.with_noise(dim=len(update), cohort=4, noise_multiplier=0.5, radius=1.0)
    draws = torch.stack([total.randomize_sum(update.expand(4, -1)) for _ in range(300)])
    assert draws.std(dim=0).min() > 0.3  # ψ is noisy like all the rest
    deviation = math.sqrt(total.worst_variance / 300)
    assert abs(float(draws.mean(dim=0)[-1]) - 4.0) < 8 * deviation  # 5 was clipped to the radius 1
    report = get("privunit", local_epsilon=4.0, dim=len(update))
    assert report.randomize(update.unsqueeze(0).float(), clip=True).to_bytes()


def test_priors_around_the_global_model_are_torch_s_own_densities() -> None:
    ours, theirs = parameters(1), parameters(2)
    for prior, law in (("gaussian", torch.distributions.Normal), ("laplace", torch.distributions.Laplace)):
        exact = -sum(law(theirs[name], 0.7).log_prob(ours[name]).sum() for name in ours)
        assert prior_loss(ours, theirs, prior=prior, spread=0.7) == pytest.approx(float(exact))
    with pytest.raises(ValueError, match="prior"):
        prior_loss(ours, theirs, prior="normal", spread=0.7)
