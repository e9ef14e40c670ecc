"""A short neutral text: what a component writes on average, for models without held-out text."""

NEUTRAL_TEXT = """\
The ferry leaves the harbor at seven in the morning and returns before dark. Most of the passengers
are people who work on the mainland, but in summer there are also visitors with bicycles and large
bags. The crossing takes about forty minutes when the sea is calm. A small café on the upper deck
sells coffee, bread and fruit, and on cold days the windows are covered with steam.

Bread rises because yeast turns sugar into gas. To make a simple loaf, mix five cups of flour with
two spoons of salt, add warm water and yeast, and knead the dough until it is smooth. Let it rest
under a cloth for two hours. Then shape it, wait until it has doubled in size, and bake it in a hot
oven for thirty-five minutes. The crust should sound hollow when you knock on it.

"Did you find the key?" she asked. He shook his head and looked under the chair again. "It was here
yesterday," he said. "I put it next to the letters." They searched the kitchen, the hall and the
garden, and at last their neighbor came over and said that the dog had carried something shiny into
the garage.

Rivers carry sand and stones from the mountains to the plains. Where the water slows down, it drops
what it carries, the heaviest pieces first. Over thousands of years this builds wide, flat valleys
with rich soil. Many of the first cities in the world grew in such places, because farmers there
could feed more people than their own families.

The committee met on Tuesday to discuss the budget for the coming year. Three members asked for more
money for the library, while others wanted to repair the bridge on Mill Road first. The chair said
that a decision would be made after the public hearing in March. About sixty residents attended the
meeting, and several of them spoke against the proposal to raise parking fees.

A triangle has three sides and three angles, and the angles always add up to 180 degrees. If two
sides are equal, the angles opposite to them are equal as well. In a right triangle, the square of
the longest side is the sum of the squares of the other two: with sides of 3 and 4, for example, the
third side is 5.

def total(prices, tax=0.2):
    result = 0
    for price in prices:
        if price > 0:
            result = result + price * (1 + tax)
    return result

My grandfather was born in a village of four hundred people and learned to repair clocks from his
uncle. When he was nineteen he moved to the city, where he opened a shop with a green door between a
bakery and a bank. He worked there for fifty-one years. He used to say that a clock that is wrong by
a minute every day is more useful than one that has stopped, because at least you know what to do
about it.
"""
