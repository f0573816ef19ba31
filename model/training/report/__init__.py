"""The report on a test: whether to rely on the forecast, for those who run the buildings.

errors.py     how far the forecast is off, by hour, weekday, temperature and meter
fans.py       the last week of some meters: reading, forecast, and the band around it
charts.py     the errors as pictures
words.py      what was found, in sentences
document.py   all of it as one HTML file, and its pictures for TensorBoard
"""
